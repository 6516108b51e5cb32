package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// redisStreams are keys of one server, each appended to over a connection of its own. Commands are pipelined by hand:
// the clients for Go either wait for each answer or send a batch and wait for all of it.
type redisStreams struct {
	connections []*redisConnection
	names       []string
}

type redisCommand struct {
	arguments []string
	entry     []byte
	done      func(error)
}

type redisConnection struct {
	queue   chan redisCommand
	waiting chan func(error)
}

func openRedis(address string, names []string, window int) (streams, error) {
	s := &redisStreams{names: names}
	for range names {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			return nil, err
		}
		c := &redisConnection{make(chan redisCommand, window), make(chan func(error), window)}
		go c.send(connection)
		go c.receive(connection)
		s.connections = append(s.connections, c)
	}
	return s, nil
}

func (s *redisStreams) add(stream int, entry []byte, done func(error)) {
	s.connections[stream].queue <- redisCommand{[]string{"XADD", s.names[stream], "*", "e"}, entry, done}
}

func (s *redisStreams) remove() error {
	result := make(chan error)
	for i, name := range s.names {
		s.connections[i].queue <- redisCommand{[]string{"UNLINK"}, []byte(name), func(err error) { result <- err }}
		if err := <-result; err != nil {
			return err
		}
	}
	return nil
}

// send writes commands, and flushes when none is queued.
func (c *redisConnection) send(connection net.Conn) {
	writer := bufio.NewWriterSize(connection, 1<<16)
	for command := range c.queue {
		c.waiting <- command.done
		fmt.Fprintf(writer, "*%d\r\n", len(command.arguments)+1)
		for _, argument := range command.arguments {
			fmt.Fprintf(writer, "$%d\r\n%s\r\n", len(argument), argument)
		}
		fmt.Fprintf(writer, "$%d\r\n", len(command.entry))
		_, _ = writer.Write(command.entry)
		_, _ = writer.WriteString("\r\n")
		if len(c.queue) == 0 {
			check(writer.Flush())
		}
	}
}

// receive reads answers, which come in the order of the commands: an error, a number or a string.
func (c *redisConnection) receive(connection net.Conn) {
	reader := bufio.NewReaderSize(connection, 1<<16)
	for done := range c.waiting {
		line, err := reader.ReadString('\n')
		check(err)
		line = strings.TrimSpace(line)
		switch line[0] {
		case '-':
			done(errors.New(line))
		case '$':
			size, err := strconv.Atoi(line[1:])
			check(err)
			_, err = reader.Discard(size + len("\r\n"))
			check(err)
			done(nil)
		default:
			done(nil)
		}
	}
}
