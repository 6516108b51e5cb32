// Writes a ledger through a Tallybook gateway, and reads it back. ../README.md says how to run it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"tallybook-example/api"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: example GATEWAY, such as 127.0.0.1:7450")
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer connection.Close()
	ledgers := api.NewLedgerServiceClient(connection)
	// Every call ends by then, whatever happens.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	id := write(ctx, ledgers, [][]byte{[]byte("hello"), []byte("from"), []byte("Go")})
	read(ctx, ledgers, id)
}

// write makes a ledger of these entries, and returns its id once it is closed: they are durable then.
func write(ctx context.Context, ledgers api.LedgerServiceClient, payloads [][]byte) int64 {
	stream, err := ledgers.Append(ctx)
	check(err)
	open := &api.AppendOpen{Ledger: &api.AppendOpen_Create{Create: &api.CreateRequest{}}}
	check(stream.Send(&api.AppendRequest{Step: &api.AppendRequest_Open{Open: open}, Payloads: payloads}))
	check(stream.Send(&api.AppendRequest{Step: &api.AppendRequest_Close{Close: &api.AppendClose{}}}))
	check(stream.CloseSend())
	for {
		reply, err := stream.Recv()
		check(err)
		if ack := reply.GetAck(); ack != nil {
			fmt.Printf("durable: %d from %d on\n", ack.Count, ack.FirstEntryId)
		}
		if ledger := reply.GetClosed(); ledger != nil {
			return ledger.LedgerId
		}
	}
}

// read prints every entry of a ledger.
func read(ctx context.Context, ledgers api.LedgerServiceClient, id int64) {
	stream, err := ledgers.Read(ctx, &api.ReadRequest{LedgerId: id})
	check(err)
	for {
		entries, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		for at, payload := range entries.Payloads {
			fmt.Printf("%d: %s\n", entries.FirstEntryId+int64(at), payload)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
