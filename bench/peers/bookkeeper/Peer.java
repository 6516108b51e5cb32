import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.BKException;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Common parts of the load programs: a client without throttling, and ledgers with E = Qw = 3, Qa = 2. */
final class Peer {
  private static final byte[] PASSWORD = "benchmark".getBytes();
  private static final long CREATE_DEADLINE_NANOS = TimeUnit.SECONDS.toNanos(30);

  private Peer() {}

  static BookKeeper connect(String metadata, String protocol) throws Exception {
    ClientConfiguration configuration = new ClientConfiguration();
    configuration.setMetadataServiceUri(metadata);
    configuration.setUseV2WireProtocol(protocol.equals("v2"));
    configuration.setThrottleValue(0);
    configuration.setNumIOThreads(2);
    return BookKeeper.newBuilder(configuration).build();
  }

  /** Creates a ledger; waits until the bookies are registered. */
  static WriteHandle create(BookKeeper client) throws Exception {
    long deadline = System.nanoTime() + CREATE_DEADLINE_NANOS;
    while (true) {
      try {
        return client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
            .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).execute().get();
      } catch (ExecutionException failure) {
        boolean early = failure.getCause() instanceof BKException cause
            && cause.getCode() == BKException.Code.NotEnoughBookiesException;
        if (!early || System.nanoTime() > deadline) {
          throw failure;
        }
        Thread.sleep(200);
      }
    }
  }

  static ReadHandle open(BookKeeper client, long ledger) throws Exception {
    return client.newOpenLedgerOp().withLedgerId(ledger).withDigestType(DigestType.CRC32C).withPassword(PASSWORD)
        .execute().get();
  }

  static double seconds(long sinceNanos) {
    return (System.nanoTime() - sinceNanos) / 1e9;
  }
}
