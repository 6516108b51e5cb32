import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;

/**
 * Writes a ledger, closes it, waits for the flush, then reads it twice; prints one line of JSON for each pass.
 *
 * <p>Arguments: METADATA PROTOCOL SIZE ENTRIES WAIT_SECONDS. A pass reads everything in order in batches (batchRead:
 * "seq"), everything in pipelined ranges of 200 entries ("range"), and 5,000 random entries one at a time.
 */
public final class ReadLoad {
  private static final int WINDOW = 1000;
  private static final int RANGE_ENTRIES = 200;
  private static final int RANGES_AHEAD = 8;
  private static final int BATCH_ENTRIES = 5000;
  private static final long BATCH_BYTES = 4 << 20;
  private static final int RANDOM_READS = 5000;

  private ReadLoad() {}

  public static void main(String[] arguments) throws Exception {
    BookKeeper client = Peer.connect(arguments[0], arguments[1]);
    int size = Integer.parseInt(arguments[2]);
    long ledger = write(client, size, Long.parseLong(arguments[3]));
    Thread.sleep((long) (Double.parseDouble(arguments[4]) * 1000));
    for (int pass = 0; pass < 2; pass++) {
      try (ReadHandle reader = Peer.open(client, ledger)) {
        double batched = batched(reader);
        double ranges = ranges(reader);
        double[] random = random(reader);
        System.out.println(String.format(Locale.ROOT,
            "{\"seq_entries_per_s\": %.1f, \"seq_mb_per_s\": %.2f, \"range_entries_per_s\": %.1f, "
                + "\"random_p50_ms\": %.3f, \"random_p99_ms\": %.3f}",
            batched, batched * size / 1e6, ranges, random[0], random[1]));
      }
    }
    System.exit(0);
  }

  private static long write(BookKeeper client, int size, long count) throws Exception {
    byte[] entry = new byte[size];
    new Random(1).nextBytes(entry);
    WriteHandle writer = Peer.create(client);
    Semaphore slots = new Semaphore(WINDOW);
    for (long i = 0; i < count; i++) {
      slots.acquire();
      writer.appendAsync(entry).whenComplete((id, failure) -> slots.release());
    }
    slots.acquire(WINDOW);
    writer.close();
    return writer.getId();
  }

  private static double batched(ReadHandle reader) throws Exception {
    long start = System.nanoTime();
    long last = reader.getLastAddConfirmed();
    long next = 0;
    while (next <= last) {
      try (LedgerEntries entries = reader.batchRead(next, BATCH_ENTRIES, BATCH_BYTES)) {
        for (LedgerEntry entry : entries) {
          next = entry.getEntryId() + 1;
        }
      }
    }
    return (last + 1) / Peer.seconds(start);
  }

  private static double ranges(ReadHandle reader) throws Exception {
    long start = System.nanoTime();
    long last = reader.getLastAddConfirmed();
    long count = 0;
    Deque<CompletableFuture<LedgerEntries>> ahead = new ArrayDeque<>();
    for (long first = 0; first <= last || !ahead.isEmpty(); ) {
      while (ahead.size() < RANGES_AHEAD && first <= last) {
        ahead.add(reader.readAsync(first, Math.min(last, first + RANGE_ENTRIES - 1)));
        first += RANGE_ENTRIES;
      }
      try (LedgerEntries entries = ahead.poll().get()) {
        for (LedgerEntry entry : entries) {
          count++;
        }
      }
    }
    return count / Peer.seconds(start);
  }

  private static double[] random(ReadHandle reader) throws Exception {
    Random random = new Random(2);
    long last = reader.getLastAddConfirmed();
    long[] latencies = new long[RANDOM_READS];
    for (int i = 0; i < latencies.length; i++) {
      long entry = (long) (random.nextDouble() * (last + 1));
      long start = System.nanoTime();
      reader.read(entry, entry).close();
      latencies[i] = System.nanoTime() - start;
    }
    Arrays.sort(latencies);
    return new double[] {latencies[RANDOM_READS / 2] / 1e6, latencies[(int) (RANDOM_READS * 0.99)] / 1e6};
  }
}
