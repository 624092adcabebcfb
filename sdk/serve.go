package sdk

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// idleTimeout is the time after which a plugin without tasks and without a connection of a host exits.
const idleTimeout = 10 * time.Minute

// serveOrExit serves a plugin. It exits the process with an error message if specErr, the error of making p, is not nil, or if
// the plugin cannot be served.
func serveOrExit(p *pluginSpec, specErr error) {
	var err error
	if specErr == nil {
		err = servePluginOrPrintVersion(p)
	} else {
		err = fmt.Errorf("serve a plugin: %w", specErr)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func servePluginOrPrintVersion(p *pluginSpec) error {
	byHand := os.Getenv(basewire.Handshake.MagicCookieKey) != basewire.Handshake.MagicCookieValue
	socket := debugSocketPath(os.Getenv(EnvDebug), p.name)
	if byHand && socket == "" {
		if len(os.Args) == 2 && (os.Args[1] == "--version" || os.Args[1] == "-version") {
			fmt.Println(p.name, p.version)
			return nil
		}
		return fmt.Errorf("this is the %s plugin %q, which a host such as nomad-lite%s starts: try \"nomad-lite plugin test %s\"", p.kindName, p.name, p.compatibleHostsSuffix, ownCommandLineForPluginTest())
	}
	setCloexecAndCatchSignals(!byHand)
	setProcessNameToProgram()
	if byHand {
		return serveDebugUntilInterrupted(p, socket)
	}
	logger := newHostLogger(p.name)
	redirectDefaultLoggers(logger)
	if socket != "" {
		return serveProxyToDebugProcess(p, socket, logger)
	}
	servePluginUntilIdle(context.Background(), p.newService(logger), logger)
	return nil
}

// newHostLogger returns a logger that writes all levels, because hosts filter by level, to standard error, in the JSON
// format that hosts parse.
func newHostLogger(name string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name:       name,
		Level:      hclog.Trace,
		Output:     os.Stderr,
		JSONFormat: true,
		TimeFormat: "2006-01-02T15:04:05.000000Z07:00",
	})
}

// ownCommandLineForPluginTest returns the command line of this process as arguments of the command `nomad-lite plugin test`.
func ownCommandLineForPluginTest() string {
	line := shellquote.QuoteIfNeeded(os.Args[0])
	if len(os.Args) > 1 {
		line += " --"
	}
	for _, arg := range os.Args[1:] {
		line += " " + shellquote.QuoteIfNeeded(arg)
	}
	return line
}

// servePluginUntilIdle serves the plugin protocol until the host stops the plugin, the plugin
// has been idle for idleTimeout, or ctx ends.
func servePluginUntilIdle(ctx context.Context, s pluginService, logger hclog.Logger) {
	i := &idleTimer{isNeededWithoutHost: s.isNeededWithoutHost}
	// Messages of go-plugin below the level Warn are not useful for users: they would hide the plugin's own last
	// log lines after a crash.
	quiet := newHostLogger("go-plugin")
	quiet.SetLevel(hclog.Warn)
	prints := sync.OnceFunc(func() { redirectStdioToLog(logger) })
	trim := memtrim.New()
	defer trim.Stop()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName: &basewire.GRPCPlugin{Impl: s.basePlugin},
			s.pluginSetKey:      s.grpcPlugin,
		},
		Logger: quiet,
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			server := basewire.NewServerWithoutSizeLimits(append(opts, grpc.StatsHandler(&grpcStatsHandler{idleTimer: i, trimmer: trim, onConnOpened: prints})))
			i.start(server.Stop)
			context.AfterFunc(ctx, server.Stop)
			return server
		},
	})
}

// setProcessNameToProgram sets the process name to the name of the program. When a host executes a
// file through its descriptor, the kernel sets the descriptor's number as the name.
func setProcessNameToProgram() {
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
}

// setCloexecAndCatchSignals prevents tasks from inheriting descriptors and signal settings of
// the host, and makes this process survive the exit of its host. If isHosted is true, the process also
// survives SIGHUP, which a closed terminal or a reload of the agent can send to it.
func setCloexecAndCatchSignals(isHosted bool) {
	// The host may pass on descriptors without close-on-exec.
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		for fd := 3; fd < 1024; fd++ { // kernels without close_range
			unix.CloseOnExec(fd)
		}
	}
	// When the host has exited, a write to stderr raises SIGPIPE, which must not end the
	// process. A handler is used instead of SIG_IGN, because tasks would inherit SIG_IGN.
	// A signal that a shell or nohup has set to SIG_IGN gets a handler for the same reason.
	caught := []os.Signal{syscall.SIGPIPE}
	if isHosted || signal.Ignored(syscall.SIGHUP) {
		caught = append(caught, syscall.SIGHUP)
	}
	if signal.Ignored(syscall.SIGINT) { // if SIGINT is not ignored, go-plugin catches it
		caught = append(caught, syscall.SIGINT)
	}
	signal.Notify(make(chan os.Signal, 1), caught...)
}

// redirectDefaultLoggers makes packages with their own logger log to the host.
func redirectDefaultLoggers(logger hclog.Logger) {
	hclog.SetDefault(logger)
	log.SetFlags(0)
	log.SetOutput(logger.StandardWriter(&hclog.StandardLoggerOptions{InferLevels: true}))
}

// redirectStdioToLog logs each line that the plugin writes to os.Stdout or os.Stderr. It must run after go-plugin
// has set both to its own pipes: Nomad discards the data of these pipes, and without a host writes to them
// block.
func redirectStdioToLog(logger hclog.Logger) {
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
