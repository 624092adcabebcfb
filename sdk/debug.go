package sdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// EnvDebug is the environment variable for running a plugin under a debugger, see [ServeDriver]. Its value is
// NAME=SOCKET: the plugin's name, and the path of a unix socket.
const EnvDebug = "NOMAD_LITE_PLUGIN_DEBUG"

// debugSocketPath returns SOCKET if envValue is NAME=SOCKET for the plugin with
// the given name, else "".
func debugSocketPath(envValue, pluginName string) string {
	if of, socket, ok := strings.Cut(envValue, "="); ok && of == pluginName {
		return socket
	}
	return ""
}

// serveDebugUntilInterrupted serves the plugin on a unix socket until the user interrupts the process. There is no
// handshake on the socket: the process that the host starts, which runs serveProxyToDebugProcess,
// performs the handshake with the host.
func serveDebugUntilInterrupted(p *pluginSpec, socketPath string) error {
	logger := hclog.New(&hclog.LoggerOptions{Name: p.name, Level: hclog.Trace, Output: os.Stderr})
	hclog.SetDefault(logger)
	if conn, err := net.Dial("unix", socketPath); err == nil {
		conn.Close()
		return fmt.Errorf("debug on %s: another process listens there", socketPath)
	}
	if err := os.Remove(socketPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("debug on %s: %w", socketPath, err)
	}
	listener, err := net.Listen("unix", socketPath)
	if err != nil {
		return fmt.Errorf("debug: %w", err)
	}
	if err := os.Chmod(socketPath, 0o600); err != nil {
		return errors.Join(fmt.Errorf("debug on %s: %w", socketPath, err), listener.Close())
	}
	g := basewire.NewServerWithoutSizeLimits(nil)
	if err := p.newService(logger).registerGRPC(g); err != nil {
		return errors.Join(fmt.Errorf("debug: %w", err), listener.Close())
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, g.Stop)
	fmt.Fprintf(os.Stderr, "waiting for a host that is started with %s=%s=%s; Ctrl-C ends this\n", EnvDebug, p.name, socketPath)
	return g.Serve(listener)
}

// serveProxyToDebugProcess serves a plugin that passes every call of the host on to the process that listens on the
// socket, which runs under a debugger.
func serveProxyToDebugProcess(p *pluginSpec, socketPath string, logger hclog.Logger) error {
	conn, err := grpc.NewClient("unix:"+socketPath, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("attach to %s: %w", socketPath, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("attach to %s: no plugin listens there; start the plugin by hand first, with the same %s", socketPath, EnvDebug)
		}
	}
	// When the process under debug exits, this process exits too: the host then starts
	// another plugin process, which attaches to the socket again.
	gone, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		if conn.WaitForStateChange(gone, connectivity.Ready) {
			logger.Error("the process under debug has gone", "socket", socketPath)
			end()
		}
	}()
	servePluginUntilIdle(gone, p.newDebugProxy(conn, gone.Done()), logger)
	return nil
}
