import java.util.Arrays;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.WriteHandle;

/**
 * Appends entries for a while and prints one line of JSON: the rate of the appends that succeeded, and their latency.
 *
 * <p>Arguments: METADATA PROTOCOL SIZE LEDGERS WINDOW SECONDS RATE. WINDOW is the number of unacked entries over all
 * ledgers. RATE 0 is a closed loop, where latency runs from the append; any other RATE (entries a second) is an open
 * loop, where it runs from the planned time of the append. Eight seconds of warm-up are not counted. All planned appends
 * are sent; those that cannot be sent within three times SECONDS are errors.
 */
public final class AddLoad {
  private static final double WARM_UP_SECONDS = 8;
  private static final double OVERRUN = 3;
  private static final int MOST_LATENCIES = 40_000_000;

  private final WriteHandle[] ledgers;
  private final byte[] entry;
  private final int window;
  private final double rate;
  private final Semaphore slots;

  private AddLoad(WriteHandle[] ledgers, byte[] entry, int window, double rate) {
    this.ledgers = ledgers;
    this.entry = entry;
    this.window = window;
    this.rate = rate;
    this.slots = new Semaphore(window);
  }

  public static void main(String[] arguments) throws Exception {
    BookKeeper client = Peer.connect(arguments[0], arguments[1]);
    byte[] entry = new byte[Integer.parseInt(arguments[2])];
    new Random(1).nextBytes(entry);
    WriteHandle[] ledgers = new WriteHandle[Integer.parseInt(arguments[3])];
    for (int i = 0; i < ledgers.length; i++) {
      ledgers[i] = Peer.create(client);
    }
    AddLoad load = new AddLoad(ledgers, entry, Integer.parseInt(arguments[4]), Double.parseDouble(arguments[6]));
    load.run(WARM_UP_SECONDS, new long[0]);
    System.out.println(load.run(Double.parseDouble(arguments[5]), new long[MOST_LATENCIES]));
    System.exit(0);
  }

  private String run(double seconds, long[] latencies) throws InterruptedException {
    AtomicInteger used = new AtomicInteger();
    AtomicLong done = new AtomicLong();
    AtomicLong errors = new AtomicLong();
    long start = System.nanoTime();
    long planned = rate > 0 ? (long) (seconds * rate) : Long.MAX_VALUE;
    long end = start + (long) (seconds * 1e9 * (rate > 0 ? OVERRUN : 1));
    long n = 0;
    for (; n < planned && System.nanoTime() < end; n++) {
      slots.acquire();
      final long from = rate > 0 ? waitUntil(start + (long) (n * 1e9 / rate)) : System.nanoTime();
      ledgers[(int) (n % ledgers.length)].appendAsync(entry).whenComplete((id, failure) -> {
        if (failure != null) {
          errors.incrementAndGet();
        } else {
          done.incrementAndGet();
          int i = used.getAndIncrement();
          if (i < latencies.length) {
            latencies[i] = System.nanoTime() - from;
          }
        }
        slots.release();
      });
    }
    if (rate > 0) {
      errors.addAndGet(planned - n);
    }
    slots.acquire(window);
    double elapsed = Peer.seconds(start);
    slots.release(window);
    return result(done.get(), errors.get(), elapsed, Arrays.copyOf(latencies, Math.min(used.get(), latencies.length)));
  }

  private static long waitUntil(long planned) {
    long ahead;
    while ((ahead = planned - System.nanoTime()) > 0) {
      LockSupport.parkNanos(ahead);
    }
    return planned;
  }

  private String result(long done, long errors, double elapsed, long[] latencies) {
    Arrays.parallelSort(latencies);
    return String.format(Locale.ROOT,
        "{\"entries\": %d, \"errors\": %d, \"entries_per_s\": %.1f, \"mb_per_s\": %.2f, \"p50_ms\": %.3f, "
            + "\"p90_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f, \"max_ms\": %.3f}",
        done, errors, done / elapsed, done * (double) entry.length / elapsed / 1e6,
        at(latencies, 0.5), at(latencies, 0.9), at(latencies, 0.99), at(latencies, 0.999), at(latencies, 1));
  }

  private static double at(long[] sorted, double share) {
    return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (sorted.length * share))] / 1e6;
  }
}
