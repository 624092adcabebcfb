package sdk_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/sdk"
)

// kettle is a driver whose tasks boil water.
type kettle struct{ watts int }

// pot is one task of a kettle.
type pot struct {
	start  *sdk.StartRequest
	boiled chan struct{}
}

var (
	_ sdk.Driver[*pot]    = (*kettle)(nil)
	_ sdk.Recoverer[*pot] = (*kettle)(nil)
	_ sdk.Configurer      = (*kettle)(nil)
	_ sdk.Fingerprinter   = (*kettle)(nil)
	_ sdk.Task            = (*pot)(nil)
	_ sdk.StateProvider   = (*pot)(nil)
	_ sdk.Execer          = (*pot)(nil)
	_ sdk.StatsProvider   = (*pot)(nil)
)

func (k *kettle) Info() sdk.DriverInfo {
	return sdk.DriverInfo{Name: "kettle", ConfigSchema: kettleSchema, TaskSchema: potSchema, Capabilities: sdk.Capabilities{Exec: true}}
}

// The main function of a driver has one line.
func ExampleServeDriver() {
	main := func() { sdk.ServeDriver(&kettle{}) }
	_ = main
}

var potSchema = sdk.Object(map[string]*sdk.Spec{
	"litres": sdk.Attr("litres", "number", true),
	"tea":    sdk.Block("tea", sdk.Object(map[string]*sdk.Spec{"kind": sdk.Attr("kind", "string", true)}), false),
})

// Start decodes the job's config, and reports progress with events.
func ExampleStartRequest() {
	start := func(ctx context.Context, start *sdk.StartRequest) (*pot, error) {
		var config struct {
			Litres float64 `codec:"litres"`
			Tea    *struct {
				Kind string `codec:"kind"`
			} `codec:"tea"`
		}
		if err := start.Config(&config); err != nil {
			return nil, err
		}
		if config.Litres > 2 {
			return nil, errors.New("the kettle holds 2 litres")
		}
		start.Event("filling the kettle", nil)
		return &pot{start: start, boiled: make(chan struct{})}, nil
	}
	_ = start
}

func (k *kettle) Start(context.Context, *sdk.StartRequest) (*pot, error) {
	// Another process uses the socket: the restart policy may start the task again.
	return nil, sdk.Recoverable(errors.New("no socket is free"))
}

// A task that can be recovered has a state, and its driver has Recover.
func ExampleRecoverer() {
	recover := func(ctx context.Context, start *sdk.StartRequest) (*pot, error) {
		var s potState
		if err := start.State(&s); err != nil {
			return nil, err
		}
		if time.Since(s.Began) > time.Hour {
			return nil, errors.New("the water has long gone cold")
		}
		return &pot{start: start, boiled: make(chan struct{})}, nil
	}
	_ = recover
}

type potState struct {
	Began time.Time `codec:"began"`
}

func (p *pot) State() any { return potState{Began: time.Now()} }

func (k *kettle) Recover(context.Context, *sdk.StartRequest) (*pot, error) {
	return nil, errors.New("gone")
}

var kettleSchema = sdk.Object(map[string]*sdk.Spec{
	"watts": sdk.Default(sdk.Attr("watts", "number", false), sdk.Literal("2000")),
})

// The driver's own configuration is in the host's plugin block. Hosts may call
// Configure more than once, also only for validation.
func ExampleConfigurer() {
	k := &kettle{}
	configure := func(_ context.Context, c *sdk.Config) error {
		var config struct {
			Watts int `codec:"watts"`
		}
		if err := c.Decode(&config); err != nil {
			return err
		}
		if config.Watts > 3500 {
			return errors.New("watts: the fuse is for 3500")
		}
		k.watts = config.Watts
		return nil
	}
	_ = configure
}

func (k *kettle) Configure(context.Context, *sdk.Config) error { return nil }

// Fingerprint is called periodically; a host only receives changes.
func ExampleFingerprinter() {
	plugged := func() bool { return true }
	fingerprint := func(context.Context) sdk.Fingerprint {
		if !plugged() {
			return sdk.Fingerprint{Health: sdk.HealthUnhealthy, HealthDescription: "the kettle is not plugged in"}
		}
		return sdk.Fingerprint{
			Health:     sdk.HealthHealthy,
			Attributes: map[string]sdk.Attribute{"driver.kettle.litres": {Value: 2.0}},
		}
	}
	_ = fingerprint
}

func (k *kettle) Fingerprint(context.Context) sdk.Fingerprint {
	return sdk.Fingerprint{Health: sdk.HealthHealthy}
}

func (p *pot) Wait(ctx context.Context) (sdk.ExitResult, error) {
	select {
	case <-p.boiled:
		return sdk.ExitResult{}, nil
	case <-ctx.Done():
		return sdk.ExitResult{}, ctx.Err()
	}
}

func (p *pot) Kill(context.Context) error { return nil }

func (p *pot) Exec(_ context.Context, e sdk.Exec) (sdk.ExitResult, error) {
	if _, err := e.Stdout.Write([]byte("stirring\n")); err != nil {
		return sdk.ExitResult{}, err
	}
	return sdk.ExitResult{ExitCode: 0}, nil
}

func (p *pot) Stats(context.Context) (sdk.TaskStats, error) {
	return sdk.TaskStats{Total: sdk.Usage{Memory: sdk.MemoryUsage{RSS: 1 << 20, Measured: []string{"RSS"}}}}, nil
}

// A schema describes a config block; the tag codec matches a field to a key.
func ExampleObject() {
	schema := sdk.Object(map[string]*sdk.Spec{
		"image":  sdk.Attr("image", "string", true),
		"labels": sdk.BlockAttrs("labels", "string", false),
		"pull":   sdk.Default(sdk.Attr("pull", "bool", false), sdk.Literal("true")),
		"mount": sdk.BlockList("mount", sdk.Object(map[string]*sdk.Spec{
			"source": sdk.Attr("source", "string", true),
			"target": sdk.Attr("target", "string", true),
		}), 0, 0),
	})
	_ = schema
}

// bouncer is a hook with two hook points.
type bouncer struct{ host sdk.Host }

var (
	_ sdk.HostSetter   = (*bouncer)(nil)
	_ sdk.TaskPrestart = (*bouncer)(nil)
	_ sdk.TaskExited   = (*bouncer)(nil)
)

func (*bouncer) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:             "bouncer",
		AttachmentSchema: sdk.Object(map[string]*sdk.Spec{"guests": sdk.Attr("guests", "list(string)", true)}),
		Timeouts:         map[sdk.Point]time.Duration{sdk.PointPrestart: 5 * time.Second},
	}
}

func (b *bouncer) SetHost(host sdk.Host, _ sdk.Node) { b.host = host }

// The main function of a hook has one line.
func ExampleServeHook() {
	main := func() { sdk.ServeHook(&bouncer{}) }
	_ = main
}

// Prestart can fail a task, and change its environment. The next call gets its State.
func (b *bouncer) Prestart(_ context.Context, req sdk.TaskPrestartRequest) (sdk.TaskPrestartResponse, error) {
	var config struct {
		Guests []string `codec:"guests"`
	}
	if err := req.Config(&config); err != nil {
		return sdk.TaskPrestartResponse{}, err
	}
	if !slices.Contains(config.Guests, req.Task.Name) {
		return sdk.TaskPrestartResponse{}, errors.New("not on the list")
	}
	return sdk.TaskPrestartResponse{
		Env:   map[string]string{"SEEN": req.PreviousState["seen"]},
		State: map[string]string{"seen": "yes"},
	}, nil
}

// A hook calls its host with the scope of a request.
func (b *bouncer) Exited(ctx context.Context, req sdk.TaskExitedRequest) (sdk.TaskExitedResponse, error) {
	return sdk.TaskExitedResponse{}, b.host.EmitEvent(ctx, req.Scope(), sdk.Event{Message: "see you"})
}

// An author can test a hook with a fake host.
func ExampleHostSetter() {
	b := &bouncer{}
	b.SetHost(quietHost{}, sdk.Node{Name: "here"})
	if _, err := b.Exited(context.Background(), sdk.TaskExitedRequest{}); err != nil {
		panic(err)
	}
}

// quietHost implements the methods that the hook calls.
type quietHost struct{ sdk.Host }

func (quietHost) EmitEvent(context.Context, sdk.Scope, sdk.Event) error { return nil }
