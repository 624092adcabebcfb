package launch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
)

// runMisbehavingPlugin is the body of a plugin process that misbehaves according to mode.
func runMisbehavingPlugin(mode string) {
	name, arg, _ := strings.Cut(mode, "=")
	switch name {
	case "text":
		fmt.Println("Starting up, please wait …")
		sleepLong()
	case "text-exit":
		fmt.Println("usage: hello [flags]")
		os.Exit(2)
	case "partial":
		fmt.Print("1|2|un")
		sleepLong()
	case "partial-exit":
		fmt.Print("1|2|un")
		os.Exit(6)
	case "line":
		fmt.Println(arg)
		sleepLong()
	case "closed-stdout":
		os.Stdout.Close()
		sleepLong()
	case "silent":
		fmt.Fprintln(os.Stderr, "waiting for the moon")
		sleepLong()
	case "exit":
		fmt.Fprintln(os.Stderr, `{"@level":"error","@message":"cannot read licence","error":"no such file"}`)
		os.Exit(3)
	case "killed":
		p, _ := os.FindProcess(os.Getpid())
		_ = p.Kill()
		sleepLong()
	case "panic":
		panic("the licence is void")
	case "cookie":
		handshake := basewire.Handshake
		handshake.MagicCookieValue = "another"
		plugin.Serve(&plugin.ServeConfig{HandshakeConfig: handshake, Plugins: plugin.PluginSet{}, GRPCServer: plugin.DefaultGRPCServer})
	case "handshake-exit":
		l := listenUnix()
		fmt.Printf("1|2|unix|%s|grpc|\n", l.Addr())
		fmt.Fprintln(os.Stderr, "I have changed my mind")
		os.Exit(7)
	case "no-socket":
		fmt.Printf("1|2|unix|%s|grpc|\n", filepath.Join(os.Getenv(plugin.EnvUnixSocketDir), "nothing"))
		sleepLong()
	case "not-listening":
		l := listenUnix()
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
		fmt.Printf("1|2|unix|%s|grpc|\n", l.Addr())
		defer os.Remove(l.Addr().String())
		sleepLong()
	case "foreign":
		// "foreign" writes a handshake line with the socket of a process of another user.
		socket := filepath.Join(arg, "s")
		cmd := exec.Command("/proc/self/exe", "test-plugin", "listen="+socket)
		runtime.LockOSThread() // the kernel sends Pdeathsig when the thread that started the child exits
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Setsid: true, Pdeathsig: syscall.SIGKILL,
		}
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		_, _ = out.Read(make([]byte, 1))
		fmt.Printf("1|2|unix|%s|grpc|\n", socket)
		_, _ = out.Read(make([]byte, 1))
	case "listen":
		l, err := net.Listen("unix", arg)
		if err != nil {
			panic(err)
		}
		fmt.Print("!")
		if conn, err := l.Accept(); err == nil {
			conn.Close()
		}
		sleepLong()
	case "mute":
		l := listenUnix()
		fmt.Printf("1|2|unix|%s|grpc|\n", l.Addr())
		for {
			if _, err := l.Accept(); err != nil {
				sleepLong()
			}
		}
	case "cert":
		servePluginWithHandshake(nil, strings.Repeat("QUJD", 40), &testDriver{})
	case "more-fields":
		servePluginWithHandshake(nil, "|true|what", &testDriver{})
	case "no-services":
		l := listenUnix()
		fmt.Printf("1|2|unix|%s|grpc|\n", l.Addr())
		_ = grpc.NewServer().Serve(l)
	case "info":
		parts := strings.Split(arg, ";")
		var offeredVersions []string
		if parts[2] != "" {
			offeredVersions = strings.Split(parts[2], ",")
		}
		t := base.TypeDriver
		if parts[3] == "device" {
			t = base.TypeDevice
		} else if parts[3] != "" {
			t = 9
		}
		servePlugin(&testDriver{info: &base.Info{Type: t, Name: parts[0], Version: parts[1], APIVersions: offeredVersions}})
	case "hang", "exit-in":
		servePlugin(&testDriver{misbehavior: name, misbehaviorCall: arg})
	case "stderr-first":
		chunk := bytes.Repeat([]byte(strings.Repeat("0123456789abcdef", 63)+"0123456789abcde\n"), 64)
		for range 1600 { // 100 MiB
			_, _ = os.Stderr.Write(chunk)
		}
		servePlugin(&testDriver{})
	case "long-line":
		chunk := bytes.Repeat([]byte{'x'}, 1<<20)
		for range 64 {
			_, _ = os.Stderr.Write(chunk)
		}
		fmt.Fprintln(os.Stderr, "\nafter the long line")
		servePlugin(&testDriver{})
	case "storm":
		d := &testDriver{}
		go func() {
			for i := 0; ; i++ {
				fmt.Fprintf(originalStderr, `{"@level":"info","@message":"storm","n":%d}`+"\n", i)
			}
		}()
		servePlugin(d)
	case "log":
		fmt.Fprint(os.Stderr, strings.ReplaceAll(arg, "\\n", "\n"))
		servePlugin(&testDriver{})
	case "holder":
		// "holder" exits, or serves, while its child keeps stdout and stderr open.
		cmd := exec.Command("/proc/self/exe", "test-plugin", "held="+arg)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			panic(err)
		}
		if arg == "serve" {
			servePlugin(&testDriver{})
		}
		runtime.KeepAlive(stdin)
		os.Exit(4)
	case "held":
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // returns when the holder has exited
			panic(err)
		}
		fmt.Fprintln(os.Stderr, "the child still writes")
		if arg == "serve" {
			time.Sleep(20 * time.Second)
		}
		time.Sleep(20 * time.Second)
	case "stubborn":
		// "stubborn" continues to run after Shutdown, without go-plugin's controller
		// service, and after the connection is closed.
		l := listenUnix()
		s := grpc.NewServer()
		basewire.RegisterServer(s, &testDriver{})
		driverwire.RegisterServer(s, &testDriver{misbehavior: "hang", misbehaviorCall: "Shutdown"})
		fmt.Printf("1|2|unix|%s|grpc|\n", l.Addr())
		_ = s.Serve(l)
		sleepLong()
	case "deaf":
		// "deaf" stops listening, closes the connection and continues to run.
		d := &testDriver{}
		l := listenUnix()
		s := grpc.NewServer()
		basewire.RegisterServer(s, d)
		driverwire.RegisterServer(s, d)
		d.onInit = func() {
			go func() {
				time.Sleep(200 * time.Millisecond)
				s.Stop()
			}()
		}
		fmt.Printf("1|2|unix|%s|grpc|\n", l.Addr())
		_ = s.Serve(l)
		sleepLong()
	case "schema":
		servePlugin(&testDriver{schema: hclspec.Object(map[string]*hclspec.Spec{
			"root":  hclspec.Attr("root", "string", false),
			"count": hclspec.Default(hclspec.Attr("count", "number", false), hclspec.Literal("3")),
		})})
	case "config-error":
		servePlugin(&testDriver{configErr: "the root is full"})
	case "env":
		for _, v := range os.Environ() {
			fmt.Fprintln(os.Stderr, "env "+v)
		}
		fmt.Fprintf(os.Stderr, "argv0 %s\n", os.Args[0])
		servePlugin(&testDriver{})
	case "stdout-later":
		servePlugin(&testDriver{onInit: func() {
			line := strings.Repeat("y", 200<<10) + "\n"
			for range 50 {
				_, _ = io.WriteString(originalStdout, line)
			}
			fmt.Fprintln(originalStderr, `{"@level":"info","@message":"stdout is written"}`)
		}})
	case "good":
		servePlugin(&testDriver{})
	default:
		panic("unknown mode " + mode)
	}
}

// The original streams are stored here, because go-plugin replaces os.Stdout and os.Stderr
// when it serves.
var originalStdout, originalStderr = os.Stdout, os.Stderr

// sleepLong sleeps longer than any test takes. It returns, so that a process that a test
// has not killed exits.
func sleepLong() { time.Sleep(2 * time.Minute) }

func listenUnix() net.Listener {
	l, err := net.Listen("unix", filepath.Join(os.Getenv(plugin.EnvUnixSocketDir), fmt.Sprintf("own%d", os.Getpid())))
	if err != nil {
		panic(err)
	}
	return l
}

// servePluginWithHandshake serves a driver after a handshake line that ends with the text rest.
func servePluginWithHandshake(opts []grpc.ServerOption, rest string, d *testDriver) {
	l := listenUnix()
	s := grpc.NewServer(opts...)
	basewire.RegisterServer(s, d)
	driverwire.RegisterServer(s, d)
	fmt.Printf("1|2|unix|%s|grpc|%s\n", l.Addr(), rest)
	_ = s.Serve(l)
}

// servePlugin serves a driver with go-plugin, as package sdk does.
func servePlugin(d *testDriver) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName:   &basewire.GRPCPlugin{Impl: d},
			driverwire.PluginName: &driverwire.GRPCPlugin{Impl: d},
		},
		GRPCServer: plugin.DefaultGRPCServer,
		Logger:     hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true, Output: originalStderr}),
	})
}

// testDriver is a driver without tasks.
type testDriver struct {
	driver.Driver // nil: tests call only the methods that testDriver implements

	info            *base.Info
	schema          *hclspec.Spec
	configErr       string
	misbehavior     string
	misbehaviorCall string
	onInit          func()
	setConfigCount  int
}

func (d *testDriver) misbehaveIfRequested(ctx context.Context, call string) {
	if d.misbehaviorCall != call {
		return
	}
	switch d.misbehavior {
	case "hang":
		sleepLong()
	case "exit-in":
		fmt.Fprintf(originalStderr, "leaving in %s\n", call)
		os.Exit(5)
	}
}

func (d *testDriver) PluginInfo(ctx context.Context) (*base.Info, error) {
	d.misbehaveIfRequested(ctx, "PluginInfo")
	if d.info != nil {
		return d.info, nil
	}
	return &base.Info{Type: base.TypeDriver, Name: "good", Version: "1.2.3", APIVersions: []string{"v0.3.0", "0.1.0"}}, nil
}

func (d *testDriver) ConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	d.misbehaveIfRequested(ctx, "ConfigSchema")
	return d.schema, nil
}

func (d *testDriver) SetConfig(ctx context.Context, c *base.Config) error {
	d.misbehaveIfRequested(ctx, "SetConfig")
	d.setConfigCount++
	ports := ""
	if c.Driver != nil {
		ports = fmt.Sprint(c.Driver.ClientMinPort, "-", c.Driver.ClientMaxPort)
	}
	fmt.Fprintf(originalStderr, "config %d %x %s %s\n", d.setConfigCount, c.MsgpackConfig, c.APIVersion, ports)
	if d.configErr != "" {
		return fmt.Errorf("%s", d.configErr)
	}
	return nil
}

func (d *testDriver) Init(ctx context.Context) error {
	d.misbehaveIfRequested(ctx, "Init")
	if d.onInit != nil {
		d.onInit()
	}
	fmt.Fprintln(originalStderr, "init")
	return nil
}

func (d *testDriver) Shutdown(ctx context.Context) error {
	d.misbehaveIfRequested(ctx, "Shutdown")
	fmt.Fprintln(originalStderr, "shutdown")
	return nil
}

func (d *testDriver) Capabilities(ctx context.Context) (*driver.Capabilities, error) {
	d.misbehaveIfRequested(ctx, "Capabilities")
	return &driver.Capabilities{Exec: true}, nil
}

func (d *testDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }
