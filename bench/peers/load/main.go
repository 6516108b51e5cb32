// Command load appends entries to streams of NATS JetStream or Redis, and prints one line of JSON: the rate of the
// appends that succeeded, and their latency. It does what AddLoad.java does to BookKeeper.
//
//	load nats|redis ADDRESS BYTES STREAMS WINDOW SECONDS [RATE]
//
// WINDOW is the number of unconfirmed appends over all streams. RATE 0 is a closed loop, where latency runs from the
// append; any other RATE (entries a second) is an open loop, where it runs from the planned time of the append. Five
// seconds of warm-up are not counted. All planned appends are sent; those that cannot be sent within three times SECONDS
// are errors.
package main

import (
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	warmUpSeconds = 5
	overrun       = 3
)

// streams are empty streams of a system, numbered from 0.
type streams interface {
	// add starts an append and calls done when it is confirmed or has failed. Calls come from one goroutine.
	add(stream int, entry []byte, done func(error))
	// remove deletes the streams.
	remove() error
}

type load struct {
	streams streams
	count   int
	entry   []byte
	window  int
	rate    float64
}

func main() {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	if len(os.Args) < 7 {
		log.Fatal("usage: load nats|redis ADDRESS BYTES STREAMS WINDOW SECONDS [RATE]")
	}
	numbers := make([]float64, 5)
	for i, text := range os.Args[3:] {
		number, err := strconv.ParseFloat(text, 64)
		check(err)
		numbers[i] = number
	}
	l := load{count: int(numbers[1]), entry: make([]byte, int(numbers[0])), window: int(numbers[2]), rate: numbers[4]}
	rand.New(rand.NewSource(1)).Read(l.entry)
	names := make([]string, l.count)
	for i := range names {
		names[i] = fmt.Sprintf("load-%d-%d", time.Now().UnixNano(), i)
	}
	open := map[string]func(string, []string, int) (streams, error){"nats": openNATS, "redis": openRedis}[os.Args[1]]
	if open == nil {
		log.Fatalf("unknown system: %s", os.Args[1])
	}
	opened, err := open(os.Args[2], names, l.window)
	check(err)
	l.streams = opened
	l.run(warmUpSeconds)
	fmt.Println(l.run(numbers[3]))
	check(l.streams.remove())
}

func (l *load) run(seconds float64) string {
	var (
		lock      sync.Mutex
		latencies []time.Duration
		errors    int
	)
	slots := make(chan struct{}, l.window)
	start := time.Now()
	planned, limit := math.MaxInt, seconds
	if l.rate > 0 {
		planned, limit = int(seconds*l.rate), seconds*overrun
	}
	end := start.Add(time.Duration(limit * 1e9))
	n := 0
	for ; n < planned && time.Now().Before(end); n++ {
		slots <- struct{}{}
		from := time.Now()
		if l.rate > 0 {
			from = start.Add(time.Duration(float64(n) * 1e9 / l.rate))
			waitUntil(from)
		}
		l.streams.add(n%l.count, l.entry, func(err error) {
			took := time.Since(from)
			lock.Lock()
			if err == nil {
				latencies = append(latencies, took)
			} else if errors++; errors == 1 {
				log.Print(err)
			}
			lock.Unlock()
			<-slots
		})
	}
	for range l.window {
		slots <- struct{}{}
	}
	if l.rate > 0 {
		errors += planned - n
	}
	return l.result(latencies, errors, time.Since(start).Seconds())
}

// waitUntil sleeps in the kernel: a timer of Go is up to a millisecond late, which would count as latency.
func waitUntil(planned time.Time) {
	for ahead := time.Until(planned); ahead > 0; ahead = time.Until(planned) {
		interval := syscall.NsecToTimespec(int64(ahead))
		_ = syscall.Nanosleep(&interval, nil)
	}
}

func (l *load) result(latencies []time.Duration, errors int, elapsed float64) string {
	slices.Sort(latencies)
	done := float64(len(latencies))
	return fmt.Sprintf(
		`{"entries": %d, "errors": %d, "entries_per_s": %.1f, "mb_per_s": %.2f, `+
			`"p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "p999_ms": %.3f, "max_ms": %.3f}`,
		len(latencies), errors, done/elapsed, done*float64(len(l.entry))/elapsed/1e6,
		at(latencies, 0.5), at(latencies, 0.9), at(latencies, 0.99), at(latencies, 0.999), at(latencies, 1))
}

func at(sorted []time.Duration, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*share))].Seconds() * 1e3
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
