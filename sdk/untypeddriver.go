package sdk

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// untypedDriver is an author's Driver[T] without the type parameter T.
type untypedDriver struct {
	authorDriver  infoProvider
	taskType      reflect.Type // T
	startMethod   taskFunc
	recoverMethod taskFunc // nil if the driver is not a Recoverer
	adoptMethod   taskFunc // nil if the driver is not an Adopter
}

// infoProvider has the method of Driver[T] that does not depend on T.
type infoProvider interface{ Info() DriverInfo }

// taskFunc is Start of a Driver, Recover of a Recoverer, or Adopt of an Adopter.
type taskFunc func(context.Context, *StartRequest) (Task, error)

// newUntypedDriver wraps a Driver without its type parameter. It fails if the driver or its task type has a method with the name, but
// not the signature, of an optional interface's method: the package would never call it.
func newUntypedDriver[T Task](impl Driver[T]) (*untypedDriver, error) {
	d := &untypedDriver{authorDriver: impl, taskType: reflect.TypeFor[T](), startMethod: wrapMethod(impl, "Start", impl.Start)}
	interfaces := append([]reflect.Type{reflect.TypeFor[Recoverer[T]](), reflect.TypeFor[Adopter[T]]()}, driverInterfaces...)
	if err := errors.Join(checkOptionalMethods(reflect.TypeOf(impl), interfaces), checkOptionalMethods(d.taskType, taskInterfaces)); err != nil {
		return nil, err
	}
	if recoverer, ok := impl.(Recoverer[T]); ok {
		d.recoverMethod = wrapMethod(impl, "Recover", recoverer.Recover)
	}
	if adopter, ok := impl.(Adopter[T]); ok {
		d.adoptMethod = wrapMethod(impl, "Adopt", adopter.Adopt)
	}
	return d, nil
}

// wrapMethod wraps Start, Recover or Adopt of a driver. The returned function converts a panic
// into an error, and returns an error if the method returns neither a task nor an error.
func wrapMethod[T Task](impl any, name string, method func(context.Context, *StartRequest) (T, error)) taskFunc {
	checkType := newTaskTypeCheck(reflect.TypeFor[T]())
	return func(ctx context.Context, start *StartRequest) (task Task, err error) {
		defer basewire.RecoverAndLogPanic(impl, name, &err)
		started, err := method(ctx, start)
		if err != nil {
			return nil, err
		}
		if isNil(reflect.ValueOf(started)) {
			return nil, nilTaskError(impl, name)
		}
		err = checkType(reflect.TypeOf(started))
		switch {
		case err == nil:
			return started, nil
		case name != "Start":
			return nil, Recoverable(err) // the task continues, and a mended version of the driver recovers it
		}
		return nil, errors.Join(err, killAndDestroyStartedTask(context.WithoutCancel(ctx), started))
	}
}

// newTaskTypeCheck returns a function that checks the optional methods of the type of a task, once for each type. The types
// are known only at run time if T is an interface; otherwise the program has checked T at its start.
func newTaskTypeCheck(t reflect.Type) func(reflect.Type) error {
	if t.Kind() != reflect.Interface {
		return func(reflect.Type) error { return nil }
	}
	var checked sync.Map // reflect.Type -> error or nil
	return func(started reflect.Type) error {
		result, ok := checked.Load(started)
		if !ok {
			result, _ = checked.LoadOrStore(started, checkOptionalMethods(started, taskInterfaces))
		}
		err, _ := result.(error)
		return err
	}
}

// checkCapabilities returns an error if c declares a capability whose method the driver or its task type does
// not have.
func (d *untypedDriver) checkCapabilities(c *driver.Capabilities) error {
	for _, capability := range []struct {
		name     string
		declared bool
		of       reflect.Type
		methods  reflect.Type
	}{
		{"SendSignals", c.SendSignals, d.taskType, reflect.TypeFor[Signaler]()},
		{"Exec", c.Exec, d.taskType, reflect.TypeFor[Execer]()},
		{"MustCreateNetwork", c.MustCreateNetwork, reflect.TypeOf(d.authorDriver), reflect.TypeFor[NetworkManager]()},
	} {
		if capability.declared && !capability.of.Implements(capability.methods) {
			return fmt.Errorf("%T.Info declares the capability %s, and %v does not implement %v", d.authorDriver, capability.name, capability.of, capability.methods)
		}
	}
	return nil
}

func isNil(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Invalid: // nil interface value
		return true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return v.IsNil()
	}
	return false
}
