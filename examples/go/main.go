// Appends to a stream through a Tallybook gateway, and reads it back. ../README.md says how to run it.
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"tallybook-example/api"
)

const name = "examples/go"

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: example GATEWAY, such as 127.0.0.1:7450")
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer connection.Close()
	streams := api.NewStreamServiceClient(connection)
	// The deadline of all calls.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	_, err = streams.Create(ctx, &api.CreateStreamRequest{Name: name})
	if status.Code(err) != codes.AlreadyExists {
		check(err)
	}
	first := write(ctx, streams, "hello", "from", "Go")
	read(ctx, streams, first)
}

// write appends records, and returns the position of the first one when all are durable and visible to readers.
func write(ctx context.Context, streams api.StreamServiceClient, lines ...string) (first string) {
	call, err := streams.Append(ctx)
	check(err)
	open := &api.StreamAppendRequest_Open{Open: &api.StreamAppendOpen{Name: name}}
	check(call.Send(&api.StreamAppendRequest{Step: open}))
	var records []*api.NewRecord
	for _, line := range lines {
		records = append(records, &api.NewRecord{Payload: []byte(line)})
	}
	// A commit makes all records visible at once. Without it, readers see a record when the next one is appended, or a
	// little later.
	commit := &api.StreamAppendRequest_Commit{Commit: &api.StreamCommit{}}
	check(call.Send(&api.StreamAppendRequest{Step: commit, Records: records}))
	check(call.Send(&api.StreamAppendRequest{Step: &api.StreamAppendRequest_Close{Close: &api.StreamAppendClose{}}}))
	check(call.CloseSend())
	for {
		reply, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return first
		}
		check(err)
		for _, run := range reply.GetAck().GetPositions() {
			fmt.Printf("durable: %d from %s on\n", run.Count, run.First)
			if first == "" {
				first = run.First
			}
		}
	}
}

// read prints every record from a position on.
func read(ctx context.Context, streams api.StreamServiceClient, first string) {
	start := &api.StreamStart{Where: &api.StreamStart_Position{Position: first}}
	call, err := streams.Read(ctx, &api.ReadStreamRequest{Name: name, Start: start})
	check(err)
	for {
		reply, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		for _, record := range reply.GetRecords().GetRecords() {
			fmt.Printf("%d: %s\n", record.Sequence, record.Payload)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
