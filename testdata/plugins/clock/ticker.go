package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// tickerArg is the first argument of the process of a task; the second is its plan.
const tickerArg = "tick"

// plan is what the process of a task does.
type plan struct {
	Every    []tick
	At       []daily
	Zone     string
	ZoneFile string
	Format   string
	To       string
	Lines    int
	ExitCode int
	Stubborn bool
	ExitFile string
}

type tick struct {
	Name   string
	Period time.Duration
	Jitter time.Duration
}

type daily struct {
	Hour, Minute int
	Text         string
}

func isTicker() bool { return len(os.Args) == 3 && os.Args[1] == tickerArg }

// runTicker is the main function of the process of a task.
func runTicker(args []string) int {
	var p plan
	if err := json.Unmarshal([]byte(args[0]), &p); err != nil {
		fmt.Fprintln(os.Stderr, "clock:", err)
		return 2
	}
	location, err := zone{name: p.Zone, file: p.ZoneFile}.load()
	if err != nil {
		fmt.Fprintln(os.Stderr, "clock:", err)
		return 2
	}
	out := os.Stdout
	if p.To == "stderr" {
		out = os.Stderr
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1)
	c := &ticker{plan: p, location: location, out: out, done: make(chan struct{})}
	for _, e := range p.Every {
		go c.repeat(e.Name, func(now time.Time) time.Duration { return e.wait(rand.Int64N) })
	}
	for _, a := range p.At {
		go c.repeat(a.Text, func(now time.Time) time.Duration { return a.next(now.In(location)).Sub(now) })
	}
	defer writeExit(p.ExitFile, p.ExitCode)
	for {
		select {
		case <-c.done:
			return p.ExitCode
		case s := <-signals:
			stops := s == syscall.SIGINT || s == syscall.SIGTERM
			c.note(fmt.Sprintf("signal %d (%s)", s, s))
			if stops && !p.Stubborn {
				return p.ExitCode
			}
		}
	}
}

// wait is the time to the next tick: the period, changed by at most the jitter.
func (t tick) wait(random func(int64) int64) time.Duration {
	if t.Jitter == 0 {
		return t.Period
	}
	return t.Period - t.Jitter + time.Duration(random(int64(2*t.Jitter)+1))
}

// next is the next time of the day, after now, in the location of now.
func (d daily) next(now time.Time) time.Time {
	t := time.Date(now.Year(), now.Month(), now.Day(), d.Hour, d.Minute, 0, 0, now.Location())
	if !t.After(now) {
		t = time.Date(now.Year(), now.Month(), now.Day()+1, d.Hour, d.Minute, 0, 0, now.Location())
	}
	return t
}

type ticker struct {
	plan
	location *time.Location
	out      io.Writer

	mu    sync.Mutex
	lines int
	done  chan struct{} // closed after the last line
}

func (c *ticker) repeat(text string, wait func(time.Time) time.Duration) {
	for {
		time.Sleep(wait(time.Now()))
		if !c.line(text) {
			return
		}
	}
}

// line prints a line, and reports whether another may follow.
func (c *ticker) line(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Lines > 0 && c.lines == c.Lines {
		return false
	}
	c.lines++
	fmt.Fprintf(c.out, "%d %s %s\n", c.lines, text, c.format(time.Now()))
	if c.lines == c.Lines {
		close(c.done)
		return false
	}
	return true
}

// note prints a line that does not count.
func (c *ticker) note(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, "- %s %s\n", text, c.format(time.Now()))
}

func (c *ticker) format(t time.Time) string {
	if c.Format == "unix" {
		return strconv.FormatInt(t.Unix(), 10)
	}
	return t.In(c.location).Format(time.RFC3339)
}
