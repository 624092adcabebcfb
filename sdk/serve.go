package sdk

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// idleTimeout is how long a plugin without tasks waits for a connection of a host.
const idleTimeout = 10 * time.Minute

// run serves a plugin, and exits the process with an error message if it cannot.
func run(p *pluginSpec, err error) {
	if err == nil {
		err = runPlugin(p)
	} else {
		err = fmt.Errorf("serve a plugin: %w", err)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func runPlugin(p *pluginSpec) error {
	byHand := os.Getenv(basewire.Handshake.MagicCookieKey) != basewire.Handshake.MagicCookieValue
	socket := debugSocketPath(os.Getenv(EnvDebug), p.name)
	if byHand && socket == "" {
		if len(os.Args) == 2 && (os.Args[1] == "--version" || os.Args[1] == "-version") {
			fmt.Println(p.name, p.version)
			return nil
		}
		return fmt.Errorf("this is the %s plugin %q, which a host such as nomad-lite%s starts: try \"nomad-lite plugin test %s\"", p.kind, p.name, p.compatibleHosts, quotedCommandLine())
	}
	isolateInheritedFDsAndSignals(!byHand)
	setProcessName()
	if byHand {
		return serveDebug(p, socket)
	}
	logger := newLogger(p.name)
	redirectLogs(logger)
	if socket != "" {
		return proxyToDebugProcess(p, socket, logger)
	}
	servePlugin(context.Background(), p.newService(logger), logger)
	return nil
}

// newLogger returns a logger for all levels, because hosts filter by level. It writes the
// format that hosts parse.
func newLogger(name string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name:       name,
		Level:      hclog.Trace,
		Output:     os.Stderr,
		JSONFormat: true,
		TimeFormat: "2006-01-02T15:04:05.000000Z07:00",
	})
}

// quotedCommandLine returns the command line of this process as arguments of `plugin test`.
func quotedCommandLine() string {
	line := os.Args[0]
	if len(os.Args) > 1 {
		line += " -- " + strings.Join(os.Args[1:], " ")
	}
	return line
}

// servePlugin serves the plugin protocol until the host stops the plugin, the plugin
// has been idle for idleTimeout, or ctx ends.
func servePlugin(ctx context.Context, s pluginService, logger hclog.Logger) {
	i := &idleTimer{isBusy: s.isBusy}
	// Messages of go-plugin below the level Warn are not useful for users, and would be
	// the last log lines of a plugin that has crashed.
	quiet := newLogger("go-plugin")
	quiet.SetLevel(hclog.Warn)
	prints := sync.OnceFunc(func() { captureStdio(logger) })
	// The process is idle most of the time, so the trimmer returns unused memory to
	// the system.
	trim := memtrim.New(25, 100)
	defer trim.Stop()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName: &basewire.GRPCPlugin{Impl: s.basePlugin},
			s.name:              s.grpcPlugin,
		},
		Logger: quiet,
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			server := basewire.NewServer(append(opts, grpc.StatsHandler(&grpcStatsHandler{idleTimer: i, trimmer: trim, onFirstConn: prints})))
			i.start(server.Stop)
			context.AfterFunc(ctx, server.Stop)
			return server
		},
	})
}

// setProcessName sets the process name to the name of the program. Without it, a host
// that executes a file through its descriptor leaves the descriptor's number as the
// name.
func setProcessName() {
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
}

// isolateInheritedFDsAndSignals prevents tasks from inheriting descriptors and signal settings of
// the host, and keeps this process running after its host has exited. With hosted, the process
// also survives SIGHUP, which comes from a closed terminal, or is the agent's reload signal.
func isolateInheritedFDsAndSignals(hosted bool) {
	// The host may pass on descriptors without close-on-exec.
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		for fd := 3; fd < 1024; fd++ { // kernels without close_range
			unix.CloseOnExec(fd)
		}
	}
	// When the host has exited, a write to stderr raises SIGPIPE, which must not end the
	// process. A handler is used instead of SIG_IGN, because tasks would inherit SIG_IGN.
	// A signal that was already ignored (by a shell or nohup) also gets a handler, so
	// that tasks do not inherit that.
	caught := []os.Signal{syscall.SIGPIPE}
	if hosted || signal.Ignored(syscall.SIGHUP) {
		caught = append(caught, syscall.SIGHUP)
	}
	if signal.Ignored(syscall.SIGINT) { // if SIGINT is not ignored, go-plugin catches it
		caught = append(caught, syscall.SIGINT)
	}
	signal.Notify(make(chan os.Signal, 1), caught...)
}

// redirectLogs makes packages with their own logger log to the host.
func redirectLogs(logger hclog.Logger) {
	hclog.SetDefault(logger)
	log.SetFlags(0)
	log.SetOutput(logger.StandardWriter(&hclog.StandardLoggerOptions{InferLevels: true}))
}

// captureStdio converts the plugin's output to log lines. It must run after go-plugin
// has set os.Stdout and os.Stderr to its own pipes: Nomad discards the data of these
// pipes, and without a host writes to them block.
func captureStdio(logger hclog.Logger) {
	r, w, err := os.Pipe()
	if err != nil {
		logger.Warn("prints of the plugin are not logged", "error", err)
		return
	}
	os.Stdout, os.Stderr = w, w
	go func() { // the goroutine runs as long as the process
		lines := bufio.NewReaderSize(r, 64<<10)
		for {
			line, _, err := lines.ReadLine()
			if err != nil {
				return
			}
			if len(line) > 0 {
				logger.Info(string(line))
			}
		}
	}()
}
