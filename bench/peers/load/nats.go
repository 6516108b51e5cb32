package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	openTimeout = 60 * time.Second
	ackTimeout  = 60 * time.Second
)

// natsStreams are streams in files of three servers, each with one subject of the same name.
type natsStreams struct {
	jetstream jetstream.JetStream
	names     []string
}

func openNATS(address string, names []string, window int) (streams, error) {
	connection, err := nats.Connect(address)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(window), jetstream.WithPublishAsyncTimeout(ackTimeout))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := createStream(js, name); err != nil {
			return nil, err
		}
	}
	return &natsStreams{js, names}, nil
}

// createStream retries until the servers have elected a leader and know each other.
func createStream(js jetstream.JetStream, name string) error {
	config := jetstream.StreamConfig{Name: name, Subjects: []string{name}, Storage: jetstream.FileStorage, Replicas: 3}
	for deadline := time.Now().Add(openTimeout); ; time.Sleep(200 * time.Millisecond) {
		attempt, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := js.CreateOrUpdateStream(attempt, config)
		cancel()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (s *natsStreams) add(stream int, entry []byte, done func(error)) {
	future, err := s.jetstream.PublishAsync(s.names[stream], entry)
	if err != nil {
		done(err)
		return
	}
	go func() {
		select {
		case <-future.Ok():
			done(nil)
		case err := <-future.Err():
			done(err)
		}
	}()
}

func (s *natsStreams) remove() error {
	for _, name := range s.names {
		if err := s.jetstream.DeleteStream(context.Background(), name); err != nil {
			return err
		}
	}
	return nil
}
