package hookwire_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// serveOnSocket serves on a unix socket until the test ends.
func serveOnSocket(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	register(s)
	var serverDone sync.WaitGroup
	serverDone.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { s.Stop(); serverDone.Wait() })
	return socket
}

// newClientOf serves a hook and returns the host's client of it.
func newClientOf(t *testing.T, p hook.Plugin, h any) *hookwire.Client {
	t.Helper()
	socket := serveOnSocket(t, func(s *grpc.Server) { hookwire.RegisterServer(s, p, h) })
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return hookwire.NewClient(conn, nil)
}

// fillFields sets every field of a value, at any depth, to a different value.
func fillFields(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) / 2)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillFields(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			if v.Type().Elem().Kind() == reflect.Uint8 {
				v.Index(i).SetUint(uint64('0' + i))
				continue
			}
			fillFields(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillFields(key, n)
		fillFields(value, n)
		v.SetMapIndex(key, value)
	case reflect.Interface:
		v.Set(reflect.ValueOf(errors.New(fmt.Sprint("error ", *n))))
	case reflect.Struct:
		switch v.Interface().(type) {
		case time.Time:
			v.Set(reflect.ValueOf(time.Unix(int64(*n), 7).UTC()))
			return
		case driver.Resources:
			// The protocol of hooks sends only these fields of driver.Resources.
			v.Set(reflect.ValueOf(driver.Resources{
				CPUShares: 1, MemoryMB: 2, MemoryMaxMB: 3, Ports: []driver.PortMapping{{Label: "http", Value: 4, To: 5, HostIP: "6"}},
				Linux: driver.LinuxResources{CpusetCpus: "7", CpusetCgroup: "8"},
			}))
			return
		case driver.Mount:
			v.Set(reflect.ValueOf(driver.Mount{TaskPath: "/a", HostPath: "/b", Readonly: true, PropagationMode: "private", SELinuxLabel: "z"}))
			return
		}
		for i := range v.NumField() {
			fillFields(v.Field(i), n)
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

func newFilledValue[T any]() (v T) {
	n := 0
	fillFields(reflect.ValueOf(&v).Elem(), &n)
	return v
}

// recordingHook implements all hook points, records the last request and returns the configured
// response.
type recordingHook struct {
	lastRequest any
	response    hook.TaskPrestartResponse
	err         error
	panics      bool
}

func (h *recordingHook) recordRequest(request any) error {
	if h.panics {
		panic("not today")
	}
	h.lastRequest = request
	return h.err
}

func (h *recordingHook) Prerun(_ context.Context, r hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, h.recordRequest(r)
}
func (h *recordingHook) UpdateAlloc(_ context.Context, r hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, h.recordRequest(r)
}
func (h *recordingHook) PreTaskRestart(_ context.Context, r hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, h.recordRequest(r)
}
func (h *recordingHook) PreKill(_ context.Context, r hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, h.recordRequest(r)
}
func (h *recordingHook) Postrun(_ context.Context, r hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, h.recordRequest(r)
}
func (h *recordingHook) Destroy(_ context.Context, r hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, h.recordRequest(r)
}
func (h *recordingHook) ShutdownAlloc(_ context.Context, r hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	return hook.AllocShutdownResponse{}, h.recordRequest(r)
}
func (h *recordingHook) Prestart(_ context.Context, r hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	return h.response, h.recordRequest(r)
}
func (h *recordingHook) Poststart(_ context.Context, r hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, h.recordRequest(r)
}
func (h *recordingHook) Update(_ context.Context, r hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, h.recordRequest(r)
}
func (h *recordingHook) PreKilling(_ context.Context, r hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, h.recordRequest(r)
}
func (h *recordingHook) Exited(_ context.Context, r hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, h.recordRequest(r)
}
func (h *recordingHook) Stop(_ context.Context, r hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, h.recordRequest(r)
}
func (h *recordingHook) Shutdown(_ context.Context, r hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	return hook.TaskShutdownResponse{}, h.recordRequest(r)
}

func (h *recordingHook) Describe(context.Context) (*hook.Description, error) {
	return nil, errors.New("unused")
}
func (h *recordingHook) Configure(_ context.Context, c hook.Config) error { return h.recordRequest(c) }

// callHookMethod calls the client's method for a hook point with a request whose fields are all
// set.
func callHookMethod(client *hookwire.Client, m hook.Point) (request any, out []reflect.Value) {
	method := reflect.ValueOf(client).MethodByName(methodNames[m])
	v := reflect.New(method.Type().In(1))
	n := 0
	fillFields(v.Elem(), &n)
	return v.Elem().Interface(), method.Call([]reflect.Value{reflect.ValueOf(context.Background()), v.Elem()})
}

var methodNames = map[hook.Point]string{
	hook.Prerun: "Prerun", hook.UpdateAlloc: "UpdateAlloc", hook.PreTaskRestart: "PreTaskRestart", hook.PreKill: "PreKill",
	hook.Postrun: "Postrun", hook.Destroy: "Destroy", hook.ShutdownAlloc: "ShutdownAlloc", hook.Prestart: "Prestart", hook.Poststart: "Poststart",
	hook.Update: "Update", hook.PreKilling: "PreKilling", hook.Exited: "Exited", hook.Stop: "Stop", hook.Shutdown: "Shutdown",
}

func TestHookPointsCarryAllFields(t *testing.T) {
	e := &recordingHook{response: newFilledValue[hook.TaskPrestartResponse]()}
	client := newClientOf(t, e, e)
	for _, m := range hook.PointsOf(e) {
		e.err = nil
		request, out := callHookMethod(client, m)
		if err := out[len(out)-1].Interface(); err != nil {
			t.Errorf("%s: %v", m, err)
		}
		if !reflect.DeepEqual(e.lastRequest, request) {
			t.Errorf("%s: got\n%+v, sent\n%+v", m, e.lastRequest, request)
		}
		if m == hook.Prestart && !reflect.DeepEqual(out[0].Interface(), e.response) {
			t.Errorf("answer\n%+v, was\n%+v", out[0], e.response)
		}

		e.err = driver.Recoverable(errors.New("not today"))
		_, out = callHookMethod(client, m)
		err, _ := out[len(out)-1].Interface().(error)
		if err == nil || err.Error() != "not today" || !driver.IsRecoverable(err) {
			t.Errorf("%s: error %v", m, err)
		}
		if m == hook.Prestart && !reflect.DeepEqual(out[0].Interface(), hook.TaskPrestartResponse{State: e.response.State}) {
			t.Errorf("a failed answer is\n%+v", out[0])
		}
	}
	if n := len(hook.PointsOf(e)); n != len(methodNames) {
		t.Errorf("%d hook points", n)
	}
}

func TestConfigure(t *testing.T) {
	e := &recordingHook{}
	want := newFilledValue[hook.Config]()
	if err := newClientOf(t, e, e).Configure(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(e.lastRequest, want) {
		t.Errorf("got %+v, sent %+v", e.lastRequest, want)
	}
}

// stopOnlyHook implements one hook point.
type stopOnlyHook struct {
	hook.Plugin
	description hook.Description
}

func (s *stopOnlyHook) Describe(context.Context) (*hook.Description, error) {
	return &s.description, nil
}

func (*stopOnlyHook) Stop(ctx context.Context, _ hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	<-ctx.Done()
	return hook.TaskStopResponse{}, ctx.Err()
}

func TestDescribe(t *testing.T) {
	want := hook.Description{
		Subscriptions: []hook.Subscription{{Point: hook.Stop, Timeout: 3 * time.Second}, {Point: hook.Prerun}},
		AllAllocs:     true, IncludeAllocJSON: true,
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{"who": hclspec.Attr("who", "string", true)}),
	}
	l := &stopOnlyHook{description: want}
	l.description.Subscriptions = append(slices.Clone(want.Subscriptions), hook.Subscription{Point: 1000})
	got, err := newClientOf(t, l, l).Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, &want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if p, ok := got.Subscription(hook.Stop); !ok || p.Timeout != 3*time.Second {
		t.Errorf("participation %+v", p)
	}
	if _, ok := got.Subscription(hook.Update); ok {
		t.Error("takes part in update")
	}
}

func TestUnimplementedHookPoint(t *testing.T) {
	l := &stopOnlyHook{}
	client := newClientOf(t, l, l)
	if _, err := client.Prerun(t.Context(), hook.AllocPrerunRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("prerun: %v", err)
	}
	if got := hook.PointsOf(l); !slices.Equal(got, []hook.Point{hook.Stop}) {
		t.Errorf("hook points %v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := client.Stop(ctx, hook.TaskStopRequest{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop: %v", err)
	}
}

func TestHookPointNames(t *testing.T) {
	named := map[string]hook.Point{"unknown": 0}
	for m := range methodNames {
		if other, taken := named[m.String()]; taken {
			t.Errorf("hook points %d and %d are both called %s", other, m, m)
		}
		named[m.String()] = m
	}
	if got := hook.Point(1000).String(); got != "unknown" {
		t.Errorf("a hook point of a newer protocol is called %s", got)
	}
}

// A panic in the method of any hook point is an error of the call, and the plugin process
// continues.
func TestPanicOfAMethodIsAnError(t *testing.T) {
	e := &recordingHook{panics: true}
	client := newClientOf(t, e, e)
	for _, m := range hook.PointsOf(e) {
		_, out := callHookMethod(client, m)
		err, _ := out[len(out)-1].Interface().(error)
		if want := "method *hookwire_test.recordingHook." + methodNames[m] + " panicked: not today (the log of the plugin has the stack)"; err == nil || err.Error() != want || driver.IsRecoverable(err) {
			t.Errorf("%s: %v, want %s", m, err, want)
		}
	}
}
