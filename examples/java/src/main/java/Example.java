import com.google.protobuf.ByteString;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.stub.StreamObserver;
import io.tallybook.api.v1.AppendClose;
import io.tallybook.api.v1.AppendOpen;
import io.tallybook.api.v1.AppendReply;
import io.tallybook.api.v1.AppendRequest;
import io.tallybook.api.v1.CreateRequest;
import io.tallybook.api.v1.LedgerServiceGrpc;
import io.tallybook.api.v1.ReadRequest;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Writes a ledger through a Tallybook gateway, and reads it back. ../README.md says how to run it. */
public final class Example {
  private static final long SECONDS = 30;

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 1) {
      System.err.println("usage: Example GATEWAY, such as 127.0.0.1:7450");
      System.exit(2);
    }
    var channel = Grpc.newChannelBuilder(arguments[0], InsecureChannelCredentials.create()).build();
    try {
      // The deadline is that of every call: each ends by then, whatever happens.
      var writing = LedgerServiceGrpc.newStub(channel).withDeadlineAfter(SECONDS, TimeUnit.SECONDS);
      long id = write(writing, List.of("hello", "from", "Java")).get(SECONDS, TimeUnit.SECONDS);

      var reading = LedgerServiceGrpc.newBlockingStub(channel).withDeadlineAfter(SECONDS, TimeUnit.SECONDS);
      reading.read(ReadRequest.newBuilder().setLedgerId(id).build()).forEachRemaining(entries -> {
        long entryId = entries.getFirstEntryId();
        for (ByteString payload : entries.getPayloadsList()) {
          System.out.println(entryId++ + ": " + payload.toStringUtf8());
        }
      });
    } finally {
      channel.shutdown().awaitTermination(SECONDS, TimeUnit.SECONDS);
    }
  }

  /** Makes a ledger of these entries; gives its id once it is closed: they are durable then. */
  private static CompletableFuture<Long> write(LedgerServiceGrpc.LedgerServiceStub ledgers, List<String> lines) {
    var closed = new CompletableFuture<Long>();
    var requests = ledgers.append(new StreamObserver<AppendReply>() {
      @Override
      public void onNext(AppendReply reply) {
        if (reply.hasAck()) {
          System.out.printf("durable: %d from %d on%n", reply.getAck().getCount(), reply.getAck().getFirstEntryId());
        } else if (reply.hasClosed()) {
          closed.complete(reply.getClosed().getLedgerId());
        }
      }

      @Override
      public void onError(Throwable error) {
        closed.completeExceptionally(error);
      }

      @Override
      public void onCompleted() {
        closed.completeExceptionally(new IllegalStateException("the gateway ended without the ledger's final state"));
      }
    });
    var payloads = lines.stream().map(ByteString::copyFromUtf8).toList();
    var open = AppendOpen.newBuilder().setCreate(CreateRequest.getDefaultInstance());
    requests.onNext(AppendRequest.newBuilder().setOpen(open).addAllPayloads(payloads).build());
    requests.onNext(AppendRequest.newBuilder().setClose(AppendClose.getDefaultInstance()).build());
    requests.onCompleted();
    return closed;
  }
}
