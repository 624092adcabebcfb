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

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/footprint"
)

// idleTimeout is how long a plugin without tasks waits for a host to come back.
const idleTimeout = 10 * time.Minute

// Serve is the whole main of a plugin: of a [Driver] or of a hook. It returns
// when the host has ended the plugin, or when no task is left and no host has come
// for ten minutes. It ends the process with an error message if it cannot serve.
//
// Started by hand, the program ends with a sentence that says what it is, or with its
// version, when its only argument is --version.
//
// While it serves, hclog.Default() and package log write to the host's log, and
// so does what the plugin prints to standard output and standard error. Tasks
// are left running whatever ends the process. After a burst of calls memory that is
// not needed any more is given back to the system.
//
// To keep a plugin up under a debugger, start it by hand with
// NOMAD_LITE_PLUGIN_DEBUG=NAME=SOCKET, and the host with the same variable: the
// process that the host starts then passes everything on to the one that you
// started. This works with any host.
func Serve(impl Plugin) {
	if err := serve(impl); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func serve(impl Plugin) error {
	p, err := programOf(impl)
	if err != nil {
		return fmt.Errorf("serve a plugin: %w", err)
	}
	byHand := os.Getenv(base.Handshake.MagicCookieKey) != base.Handshake.MagicCookieValue
	socket := debugSocket(os.Getenv(EnvDebug), p.info.Name)
	if byHand && socket == "" {
		if len(os.Args) == 2 && (os.Args[1] == "--version" || os.Args[1] == "-version") {
			fmt.Println(p.info.Name, p.info.Version)
			return nil
		}
		return fmt.Errorf("this is the %s plugin %q, which a host such as nomad-lite%s starts: try \"nomad-lite plugin test %s\"", p.kind, p.info.Name, p.otherHosts, commandLine())
	}
	isolateInherited(!byHand)
	setProcessName()
	if byHand {
		return debug(p, socket)
	}
	logger := newLogger(p.info.Name)
	redirectLogs(logger)
	if socket != "" {
		return attach(p, socket, logger)
	}
	servePlugin(context.Background(), p.serve(logger), logger)
	return nil
}

// newLogger logs everything, in the form that hosts parse: they filter.
func newLogger(name string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name:       name,
		Level:      hclog.Trace,
		Output:     os.Stderr,
		JSONFormat: true,
		TimeFormat: "2006-01-02T15:04:05.000000Z07:00",
	})
}

// commandLine is how this process was started, for `plugin test`.
func commandLine() string {
	line := os.Args[0]
	if len(os.Args) > 1 {
		line += " -- " + strings.Join(os.Args[1:], " ")
	}
	return line
}

// servePlugin speaks the plugin protocol until the host, the lack of one, or ctx
// ends it.
func servePlugin(ctx context.Context, s service, logger hclog.Logger) {
	i := &idle{busy: s.busy}
	// What the library says of itself at lower levels helps nobody, and would be
	// the last words of a plugin that has died.
	quiet := newLogger("go-plugin")
	quiet.SetLevel(hclog.Warn)
	prints := sync.OnceFunc(func() { captureStdio(logger) })
	rest := time.AfterFunc(quietPeriod, footprint.Release)
	defer rest.Stop()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins: plugin.PluginSet{
			base.PluginName: &base.GRPCPlugin{Impl: s.base},
			s.name:          s.glue,
		},
		Logger: quiet,
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			server := base.NewServer(append(opts, grpc.StatsHandler(&connections{idle: i, rest: rest, first: prints})))
			i.start(server.Stop)
			context.AfterFunc(ctx, server.Stop)
			return server
		},
	})
}

// setProcessName gives the process the name of its program. A host that executes a
// file through its descriptor has left it with the number of that.
func setProcessName() {
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
}

// isolateInherited keeps what this process inherited from reaching the tasks, and a lost
// host from ending this process. With a host, a SIGHUP does not end it either: that is
// the signal of a terminal that closes, or a reload signal that was meant for the agent.
func isolateInherited(hosted bool) {
	// Whatever the host forgot to close on exec.
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		for fd := 3; fd < 1024; fd++ { // an old kernel
			unix.CloseOnExec(fd)
		}
	}
	// After the host's death a line on stderr must not be the end. A handler and
	// not SIG_IGN, which tasks would inherit; nor should they inherit what a shell
	// or nohup has set to be ignored.
	caught := []os.Signal{syscall.SIGPIPE}
	if hosted || signal.Ignored(syscall.SIGHUP) {
		caught = append(caught, syscall.SIGHUP)
	}
	if signal.Ignored(syscall.SIGINT) { // go-plugin catches it otherwise
		caught = append(caught, syscall.SIGINT)
	}
	signal.Notify(make(chan os.Signal, 1), caught...)
}

// redirectLogs makes the packages that log by themselves log to the host.
func redirectLogs(logger hclog.Logger) {
	hclog.SetDefault(logger)
	log.SetFlags(0)
	log.SetOutput(logger.StandardWriter(&hclog.StandardLoggerOptions{InferLevels: true}))
}

// captureStdio turns what the plugin prints into log lines. It must run after
// go-plugin has set os.Stdout and os.Stderr to pipes of its own: what goes into
// those is thrown away by Nomad, and blocks once no host reads it.
func captureStdio(logger hclog.Logger) {
	r, w, err := os.Pipe()
	if err != nil {
		logger.Warn("prints of the plugin are not logged", "error", err)
		return
	}
	os.Stdout, os.Stderr = w, w
	go func() { // lives as long as the process, like what it reads
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
