import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;

/**
 * Catch-up readers: read whole ledgers in order, one after the other, with a common rate limit.
 *
 * <p>Arguments: METADATA PROTOCOL fill SIZE ENTRIES LEDGERS writes ledgers, closes them and prints one line of JSON with
 * their ids. METADATA PROTOCOL read BYTES_PER_SECOND SECONDS LEDGER... reads them repeatedly and prints its progress every
 * half second. A rate of 0 is unlimited.
 */
public final class CatchUp {
  private static final int WINDOW = 1000;
  private static final int READERS = 2;
  private static final int BATCH_ENTRIES = 5000;
  private static final long BATCH_BYTES = 2 << 20;
  private static final long TELL_MILLIS = 500;

  private final BookKeeper client;
  private final double bytesPerSecond;
  private final long[] ledgers;
  private final AtomicInteger next = new AtomicInteger();
  private final AtomicLong bytes = new AtomicLong();
  private final long start = System.nanoTime();

  private CatchUp(BookKeeper client, double bytesPerSecond, long[] ledgers) {
    this.client = client;
    this.bytesPerSecond = bytesPerSecond;
    this.ledgers = ledgers;
  }

  public static void main(String[] arguments) throws Exception {
    BookKeeper client = Peer.connect(arguments[0], arguments[1]);
    if (arguments[2].equals("fill")) {
      fill(client, Integer.parseInt(arguments[3]), Long.parseLong(arguments[4]), Integer.parseInt(arguments[5]));
    } else {
      long[] ledgers = new long[arguments.length - 5];
      for (int i = 0; i < ledgers.length; i++) {
        ledgers[i] = Long.parseLong(arguments[5 + i]);
      }
      new CatchUp(client, Double.parseDouble(arguments[3]), ledgers).run(Double.parseDouble(arguments[4]));
    }
    System.exit(0);
  }

  private static void fill(BookKeeper client, int size, long entries, int ledgers) throws Exception {
    byte[] entry = new byte[size];
    new Random(1).nextBytes(entry);
    List<String> made = new ArrayList<>();
    for (int i = 0; i < ledgers; i++) {
      WriteHandle writer = Peer.create(client);
      Semaphore slots = new Semaphore(WINDOW);
      for (long n = 0; n < entries; n++) {
        slots.acquire();
        writer.appendAsync(entry).whenComplete((id, failure) -> slots.release());
      }
      slots.acquire(WINDOW);
      writer.close();
      made.add(Long.toString(writer.getId()));
    }
    System.out.println("{\"ledgers\": [" + String.join(", ", made) + "]}");
  }

  private void run(double seconds) throws Exception {
    for (int i = 0; i < READERS; i++) {
      Thread reader = new Thread(this::readForEver);
      reader.setDaemon(true);
      reader.start();
    }
    while (Peer.seconds(start) < seconds) {
      Thread.sleep(TELL_MILLIS);
      if (bytes.get() > 0) {
        System.out.println(
            String.format(Locale.ROOT, "{\"bytes\": %d, \"seconds\": %.3f}", bytes.get(), Peer.seconds(start)));
      }
    }
  }

  private void readForEver() {
    try {
      while (true) {
        read(ledgers[next.getAndIncrement() % ledgers.length]);
      }
    } catch (Exception failure) {
      failure.printStackTrace();
      System.exit(1);
    }
  }

  private void read(long ledger) throws Exception {
    try (ReadHandle reader = Peer.open(client, ledger)) {
      long last = reader.getLastAddConfirmed();
      for (long entry = 0; entry <= last; ) {
        try (LedgerEntries entries = reader.batchRead(entry, BATCH_ENTRIES, BATCH_BYTES)) {
          for (LedgerEntry each : entries) {
            bytes.addAndGet(each.getEntryNioBuffer().remaining());
            entry = each.getEntryId() + 1;
          }
        }
        keepToTheRate();
      }
    }
  }

  private void keepToTheRate() {
    if (bytesPerSecond > 0) {
      long due = start + (long) (bytes.get() / bytesPerSecond * 1e9);
      for (long ahead; (ahead = due - System.nanoTime()) > 0; ) {
        LockSupport.parkNanos(ahead);
      }
    }
  }
}
