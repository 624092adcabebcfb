package sdk

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

type named struct{}

func (named) Info() Info { return Info{Name: "named"} }

type stopsOnly struct{ named }

func (stopsOnly) Stop(context.Context, TaskStopRequest) (TaskStopResponse, error) {
	return TaskStopResponse{}, nil
}

type almost struct{ stopsOnly }

func (almost) Prestart(context.Context, TaskPrestartRequest) error { return nil }

type onlyAlmost struct{ named }

func (onlyAlmost) Exited(TaskExitedRequest) error { return nil }

type rudeGuest struct{ stopsOnly }

func (rudeGuest) SetHost(Host) {}

type both struct{ stopsOnly }

func (both) Start(context.Context, *StartRequest) (Task, error) { return nil, nil }

type noStart struct{ named }

func (noStart) Start(context.Context) error { return nil }

type oddRecover struct{ named }

func (oddRecover) Start(context.Context, *StartRequest) (Task, error) { return nil, nil }
func (oddRecover) Recover(context.Context) error                      { return nil }

type patient struct {
	stopsOnly
	timeouts map[Point]time.Duration
}

func (p patient) Info() Info { return Info{Name: "patient", Timeouts: p.timeouts} }

type misnamed struct{ stopsOnly }

func (misnamed) PreStart(context.Context, TaskPrestartRequest) (TaskPrestartResponse, error) {
	return TaskPrestartResponse{}, nil
}

type pointed struct{ stopsOnly }

func (*pointed) Exited(context.Context, TaskExitedRequest) (TaskExitedResponse, error) {
	return TaskExitedResponse{}, nil
}

type napDriver[T Task] struct{ named }

func (napDriver[T]) Start(context.Context, *StartRequest) (t T, err error) { return t, nil }

type rest struct{}

func (rest) Wait(context.Context) (ExitResult, error) { return ExitResult{}, nil }
func (rest) Kill(context.Context) error               { return nil }

type halfNetworker struct{ napDriver[Task] }

func (halfNetworker) DestroyNetwork(context.Context, string, *NetworkIsolation) error { return nil }

type deafRest struct{ rest }

func (deafRest) Signal(string) error { return nil }

type countedRest struct{ rest }

func (countedRest) Stats(context.Context) (Usage, error) { return Usage{}, nil }

type saysHook struct {
	stopsOnly
	info Info
}

func (s saysHook) Info() Info { return s.info }

type saysDriver struct {
	napDriver[Task]
	info Info
}

func (s saysDriver) Info() Info { return s.info }

type anonymous struct{ stopsOnly }

func (anonymous) Info() Info { return Info{} }

func TestWhatCannotBeServedIsSaid(t *testing.T) {
	for _, test := range []struct {
		impl Plugin
		want string
	}{
		{named{}, "sdk.named takes part in nothing: a hook has a method for at least one hook point, such as Prestart(context.Context, sdk.TaskPrestartRequest) (sdk.TaskPrestartResponse, error), and a driver has Start(context.Context, *sdk.StartRequest) (T, error)"},
		{almost{}, "the method Prestart of sdk.almost is func(context.Context, sdk.TaskPrestartRequest) error; it must be func(context.Context, sdk.TaskPrestartRequest) (sdk.TaskPrestartResponse, error)"},
		{onlyAlmost{}, "the method Exited of sdk.onlyAlmost is func(sdk.TaskExitedRequest) error; it must be func(context.Context, sdk.TaskExitedRequest) (sdk.TaskExitedResponse, error)"},
		{rudeGuest{}, "the method SetHost of sdk.rudeGuest is func(sdk.Host); it must be func(sdk.Host, sdk.Node)"},
		{both{}, "a plugin is one of the two"},
		{noStart{}, "the method Start of sdk.noStart is func(context.Context) error; a driver's is func(context.Context, *sdk.StartRequest) (T, error), where T has the methods of sdk.Task"},
		{oddRecover{}, "the method Recover of sdk.oddRecover is func(context.Context) error, and Start is func(context.Context, *sdk.StartRequest) (sdk.Task, error); they must be the same"},
		{patient{timeouts: map[Point]time.Duration{PointExited: time.Second}}, "Info has a timeout for exited, and sdk.patient takes no part in that"},
		{patient{timeouts: map[Point]time.Duration{PointStop: -1}}, "the timeout for stop in Info is -1ns"},
		{anonymous{}, "Info has no Name"},
		{misnamed{}, "the method PreStart of sdk.misnamed would never be called: it must have the name Prestart"},
		{pointed{}, "sdk.pointed has no method Exited, and *sdk.pointed has: serve a pointer"},
		{halfNetworker{}, "sdk.halfNetworker has the method DestroyNetwork, and not all of sdk.NetworkManager"},
		{napDriver[deafRest]{}, "the method Signal of sdk.deafRest is func(string) error; it must be func(context.Context, string) error"},
		{napDriver[countedRest]{}, "the method Stats of sdk.countedRest is func(context.Context) (sdk.Usage, error); it must be func(context.Context) (sdk.TaskStats, error)"},
		{saysHook{info: Info{Name: "x", TaskSchema: Object(nil)}}, "Info of sdk.saysHook has a TaskSchema, which is for drivers; how a job attaches a hook is said by AttachmentSchema"},
		{saysHook{info: Info{Name: "x", ConfigSchema: Object(nil)}}, "nothing takes the configuration: add Configure(context.Context, *sdk.Config) error"},
		{saysHook{info: Info{Name: "x", ReportsHealth: true}}, "it could never say that an allocation is healthy"},
		{saysHook{info: Info{Name: "x", AttachmentSchema: Attr("a", "string", true)}}, "AttachmentSchema in Info: it is no Object"},
		{saysDriver{info: Info{Name: "x", AllAllocs: true}}, "has what only hooks have"},
		{saysDriver{info: Info{Name: "x", Capabilities: Capabilities{SendSignals: true}}}, "Info of sdk.saysDriver declares the capability SendSignals, and sdk.Task does not implement sdk.Signaler"},
		{saysDriver{info: Info{Name: "x", Capabilities: Capabilities{Exec: true}}}, "Info of sdk.saysDriver declares the capability Exec, and sdk.Task does not implement sdk.Execer"},
		{saysDriver{info: Info{Name: "x", Capabilities: Capabilities{MustCreateNetwork: true}}}, "Info of sdk.saysDriver declares the capability MustCreateNetwork, and sdk.saysDriver does not implement sdk.NetworkManager"},
	} {
		if p, err := programOf(test.impl); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%T: %+v, %v; want %s", test.impl, p, err, test.want)
		}
	}
}

func TestWhatAValueIsFollowsFromItsMethods(t *testing.T) {
	for _, test := range []struct {
		impl Plugin
		want string
	}{
		{stopsOnly{}, "hook"},
		{patient{timeouts: map[Point]time.Duration{PointStop: time.Hour}}, "hook"},
		{&napper{}, "task driver"},
		{&fullDriver{}, "task driver"},
	} {
		if p, err := programOf(test.impl); err != nil || p.kind != test.want {
			t.Errorf("%T: %+v, %v; want a %s", test.impl, p, err, test.want)
		}
	}
}

func TestTimeoutsAreDescribed(t *testing.T) {
	s, err := newHookServer(patient{timeouts: map[Point]time.Duration{PointStop: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.Describe(t.Context())
	if want := (hook.Subscription{Point: hook.Stop, Timeout: time.Hour}); err != nil || len(d.Subscriptions) != 1 || d.Subscriptions[0] != want {
		t.Errorf("it takes part in %+v, %v; want %+v", d.Subscriptions, err, want)
	}
}
