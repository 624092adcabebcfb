package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
)

// faultFilePath is the path of a file with the faults that a driver shall have, separated by semicolons. Each fault is
// a name with arguments. The driver reads the file at each call, so that a test can remove the faults. An empty path
// means no faults.
type faultFilePath string

// faultArgs returns the arguments of a fault, and whether the file names that fault.
func (f faultFilePath) faultArgs(name string) (args []string, set bool) {
	if f == "" {
		return nil, false
	}
	text, err := os.ReadFile(string(f))
	if err != nil {
		return nil, false // the faults have ended
	}
	for fault := range strings.SplitSeq(string(text), ";") {
		if words := strings.Fields(fault); len(words) > 0 && words[0] == name {
			return words[1:], true
		}
	}
	return nil, false
}

// methodFaultArgs returns the arguments of a fault after the first one, which is a method, and whether the file names
// the fault with that method.
func (f faultFilePath) methodFaultArgs(name, method string) (args []string, set bool) {
	if args, set = f.faultArgs(name); !set || len(args) == 0 || args[0] != method {
		return nil, false
	}
	return args[1:], true
}

// occurredFaultSet records which faults that occur only once per process have occurred.
type occurredFaultSet struct {
	mu             sync.Mutex
	occurredByName map[string]bool
}

func (o *occurredFaultSet) recordIfFirstOccurrence(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.occurredByName[name] {
		return false
	}
	if o.occurredByName == nil {
		o.occurredByName = map[string]bool{}
	}
	o.occurredByName[name] = true
	return true
}

// faultInjectingServerOptions returns options that insert the faults of calls:
//
//	slow DURATION          each call has a delay
//	code METHOD NUMBER     the call fails with a gRPC code
//	corrupt METHOD         the response is no valid message
//	oversize METHOD        the response has 20 MiB
//	exit-after METHOD      the process exits after the response
//	endless-fingerprints   the health changes each millisecond
//	short-streams          each stream ends at once
func (d *protocolDialectDriver) faultInjectingServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(d.injectUnaryFaults), grpc.StreamInterceptor(d.injectStreamFaults)}
}

func (d *protocolDialectDriver) injectUnaryFaults(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	if err := d.faultFile.injectDelayOrError(method); err != nil {
		return nil, err
	}
	if method == "StartTask" {
		d.startTaskInProgressMu.RLock()
		defer time.AfterFunc(responseDelay, d.startTaskInProgressMu.RUnlock)
	}
	response, err := handler(ctx, request)
	if _, set := d.faultFile.methodFaultArgs("exit-after", method); set && method != "Shutdown" {
		time.AfterFunc(responseDelay, d.exitAfterStartResponses)
	}
	m, ok := response.(proto.Message)
	if !ok || err != nil {
		return response, err
	}
	if _, set := d.faultFile.methodFaultArgs("corrupt", method); set {
		m.ProtoReflect().SetUnknown([]byte{0xff}) // invalid protobuf: an incomplete field tag
	}
	if _, set := d.faultFile.methodFaultArgs("oversize", method); set {
		m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 4242, protowire.BytesType), make([]byte, 20<<20)))
	}
	return response, nil
}

// responseDelay is a time that is long enough to send a response.
const responseDelay = 20 * time.Millisecond

// exitAfterStartResponses exits the process, but not during StartTask: the host could not determine whether the task
// was started.
func (d *protocolDialectDriver) exitAfterStartResponses() {
	d.startTaskInProgressMu.Lock()
	os.Exit(5)
}

func (d *protocolDialectDriver) injectStreamFaults(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	method := path.Base(info.FullMethod)
	if err := d.faultFile.injectDelayOrError(method); err != nil {
		return err
	}
	if _, set := d.faultFile.faultArgs("short-streams"); set && method != "ExecTaskStreaming" {
		return nil
	}
	if _, set := d.faultFile.faultArgs("endless-fingerprints"); set && method == "Fingerprint" {
		for healthy := false; stream.Context().Err() == nil && set; healthy = !healthy {
			health := driverpb.FingerprintResponse_UNHEALTHY
			if healthy {
				health = driverpb.FingerprintResponse_HEALTHY
			}
			if err := stream.SendMsg(&driverpb.FingerprintResponse{Health: health, HealthDescription: "it flaps"}); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
			_, set = d.faultFile.faultArgs("endless-fingerprints")
		}
	}
	return handler(server, stream)
}

func (f faultFilePath) injectDelayOrError(method string) error {
	if args, set := f.faultArgs("slow"); set {
		delay, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		time.Sleep(delay)
	}
	if args, set := f.methodFaultArgs("code", method); set {
		code, err := strconv.ParseUint(args[0], 10, 32)
		if err != nil {
			return err
		}
		return status.Error(codes.Code(code), "refused by the driver")
	}
	return nil
}

// The methods of protocolDialectDriver have further faults:
//
//	other-schema       the driver has another task schema
//	recover-nothing    RecoverTask fails for running tasks
//	recover-anything   RecoverTask succeeds for tasks that have ended, which then run until they are destroyed
//	runs-forever       WaitTask does not return after the end of a task
//	destroy-nothing    DestroyTask succeeds and does nothing

// injectHandleFault changes the handle of a started task.
//
//	foreign-handle   the handle is for another task
//	future-handle    the handle has a version that the driver has not seen yet
func (f faultFilePath) injectHandleFault(h *driverpb.TaskHandle) {
	if _, set := f.faultArgs("foreign-handle"); set {
		h.Config = proto.Clone(h.Config).(*driverpb.TaskConfig)
		h.Config.Id, h.Config.Name, h.Config.AllocId = "another/task/0", "task", "another"
	}
	if _, set := f.faultArgs("future-handle"); set {
		h.Version = 1 << 30
	}
}

// faultyWaitResponseOrNil returns a false response of WaitTask, or none.
//
//	wait-at-once       the task has ended, although it runs
//	wait-error-once    the first call fails
//	wait-everything    the response has an exit code, a signal and an error
func (d *protocolDialectDriver) faultyWaitResponseOrNil() (*driverpb.WaitTaskResponse, error) {
	if _, set := d.faultFile.faultArgs("wait-at-once"); set {
		return &driverpb.WaitTaskResponse{Result: &driverpb.ExitResult{}}, nil
	}
	if _, set := d.faultFile.faultArgs("wait-error-once"); set && d.occurredFaults.recordIfFirstOccurrence("wait-error-once") {
		return nil, errors.New("refused by the driver")
	}
	if _, set := d.faultFile.faultArgs("wait-everything"); set {
		return &driverpb.WaitTaskResponse{Result: &driverpb.ExitResult{ExitCode: 3, Signal: 9, OomKilled: true}, Err: "refused by the driver"}, nil
	}
	return nil, nil
}

// injectStatsFaults sends statistics without pause (stats-flood), or none after the first (stats-stop), until
// the stream or the fault ends.
func (d *protocolDialectDriver) injectStatsFaults(stream grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	for {
		_, flood := d.faultFile.faultArgs("stats-flood")
		_, stop := d.faultFile.faultArgs("stats-stop")
		switch {
		case stream.Context().Err() != nil || !flood && !stop:
			return nil
		case stop:
			time.Sleep(20 * time.Millisecond)
		}
		for range 1000 {
			if !flood {
				break
			}
			if err := stream.Send(&driverpb.TaskStatsResponse{}); err != nil {
				return err
			}
		}
	}
}

// injectUnknownTaskEvents sends events of unknown tasks (strange-events) until the stream or the fault ends.
func (d *protocolDialectDriver) injectUnknownTaskEvents(stream grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	for n := 0; stream.Context().Err() == nil; n++ {
		if _, set := d.faultFile.faultArgs("strange-events"); !set {
			return nil
		}
		if err := stream.Send(&driverpb.DriverTaskEvent{AllocId: fmt.Sprint("nowhere-", n), TaskName: "../t", Message: strings.Repeat("x", 2000)}); err != nil {
			return err
		}
	}
	return nil
}
