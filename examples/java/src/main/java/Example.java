import com.google.protobuf.ByteString;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import io.tallybook.api.v1.CreateStreamRequest;
import io.tallybook.api.v1.NewRecord;
import io.tallybook.api.v1.ReadStreamRequest;
import io.tallybook.api.v1.StreamAppendClose;
import io.tallybook.api.v1.StreamAppendOpen;
import io.tallybook.api.v1.StreamAppendReply;
import io.tallybook.api.v1.StreamAppendRequest;
import io.tallybook.api.v1.StreamCommit;
import io.tallybook.api.v1.StreamServiceGrpc;
import io.tallybook.api.v1.StreamStart;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Appends to a stream through a Tallybook gateway, and reads it back. examples/README.md says how to run it. */
public final class Example {
  private static final String NAME = "examples/java";
  private static final long SECONDS = 30;

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 1) {
      System.err.println("usage: Example GATEWAY, such as 127.0.0.1:7450");
      System.exit(2);
    }
    var channel = Grpc.newChannelBuilder(arguments[0], InsecureChannelCredentials.create()).build();
    try {
      // The deadline of all calls.
      var streams = StreamServiceGrpc.newBlockingStub(channel).withDeadlineAfter(SECONDS, TimeUnit.SECONDS);
      try {
        streams.create(CreateStreamRequest.newBuilder().setName(NAME).build());
      } catch (StatusRuntimeException error) {
        if (error.getStatus().getCode() != Status.Code.ALREADY_EXISTS) {
          throw error;
        }
      }

      var writing = StreamServiceGrpc.newStub(channel).withDeadlineAfter(SECONDS, TimeUnit.SECONDS);
      String first = write(writing, List.of("hello", "from", "Java")).get(SECONDS, TimeUnit.SECONDS).get(0);

      var start = StreamStart.newBuilder().setPosition(first);
      streams.read(ReadStreamRequest.newBuilder().setName(NAME).setStart(start).build()).forEachRemaining(reply -> {
        for (var record : reply.getRecords().getRecordsList()) {
          System.out.println(record.getSequence() + ": " + record.getPayload().toStringUtf8());
        }
      });
    } finally {
      channel.shutdown().awaitTermination(SECONDS, TimeUnit.SECONDS);
    }
  }

  /** Appends records; gives where they are, the first of each run of positions, once durable and visible. */
  private static CompletableFuture<List<String>> write(StreamServiceGrpc.StreamServiceStub streams, List<String> lines) {
    var found = new ArrayList<String>();
    var done = new CompletableFuture<List<String>>();
    var requests = streams.append(new StreamObserver<StreamAppendReply>() {
      @Override
      public void onNext(StreamAppendReply reply) {
        for (var run : reply.getAck().getPositionsList()) {
          System.out.printf("durable: %d from %s on%n", run.getCount(), run.getFirst());
          found.add(run.getFirst());
        }
      }

      @Override
      public void onError(Throwable error) {
        done.completeExceptionally(error);
      }

      @Override
      public void onCompleted() {
        done.complete(found);
      }
    });
    var records = lines.stream().map(line -> NewRecord.newBuilder().setPayload(ByteString.copyFromUtf8(line)).build());
    var open = StreamAppendOpen.newBuilder().setName(NAME);
    requests.onNext(StreamAppendRequest.newBuilder().setOpen(open).build());
    // A commit makes all records visible at once. Without it, readers see a record when the next one is appended, or a
    // little later.
    var commit = StreamCommit.getDefaultInstance();
    requests.onNext(StreamAppendRequest.newBuilder().setCommit(commit).addAllRecords(records.toList()).build());
    requests.onNext(StreamAppendRequest.newBuilder().setClose(StreamAppendClose.getDefaultInstance()).build());
    requests.onCompleted();
    return done;
  }
}
