package sdk

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// taskDriver is an author's driver whose T is only known at run time.
type taskDriver struct {
	impl    Plugin
	task    reflect.Type // T
	start   starter
	recover starter // nil if the driver is not a Recoverer
}

// starter is Start of a Driver, or Recover of a Recoverer.
type starter func(context.Context, *StartRequest) (Task, error)

// newTaskDriver requires a value that has a method Start.
func newTaskDriver(impl Plugin) (*taskDriver, error) {
	d := &taskDriver{impl: impl}
	v := reflect.ValueOf(impl)
	start := v.MethodByName("Start")
	if d.task = started(start.Type()); d.task == nil {
		return nil, fmt.Errorf("the method Start of %T is %v; a driver's is func(context.Context, *sdk.StartRequest) (T, error), where T has the methods of sdk.Task", impl, start.Type())
	}
	if err := errors.Join(checkMethods(reflect.TypeOf(impl), driverInterfaces), checkMethods(d.task, taskInterfaces)); err != nil {
		return nil, err
	}
	d.start = d.call(start, "Start")
	if recover := v.MethodByName("Recover"); recover.IsValid() {
		if recover.Type() != start.Type() {
			return nil, fmt.Errorf("the method Recover of %T is %v, and Start is %v; they must be the same", impl, recover.Type(), start.Type())
		}
		d.recover = d.call(recover, "Recover")
	}
	return d, nil
}

// started returns the T of a Start with this signature; nil if f is not such a
// signature.
func started(f reflect.Type) reflect.Type {
	if f.NumIn() != 2 || f.In(0) != reflect.TypeFor[context.Context]() || f.In(1) != reflect.TypeFor[*StartRequest]() ||
		f.NumOut() != 2 || !f.Out(0).Implements(reflect.TypeFor[Task]()) || f.Out(1) != reflect.TypeFor[error]() {
		return nil
	}
	return f.Out(0)
}

// checkCapabilities returns an error for a declared capability without its method.
func (d *taskDriver) checkCapabilities(c *Capabilities) error {
	for _, capability := range []struct {
		name     string
		declared bool
		of       reflect.Type
		methods  reflect.Type
	}{
		{"SendSignals", c.SendSignals, d.task, reflect.TypeFor[Signaler]()},
		{"Exec", c.Exec, d.task, reflect.TypeFor[Execer]()},
		{"MustCreateNetwork", c.MustCreateNetwork, reflect.TypeOf(d.impl), reflect.TypeFor[NetworkManager]()},
	} {
		if capability.declared && !capability.of.Implements(capability.methods) {
			return fmt.Errorf("Info of %T declares the capability %s, and %v does not implement %v", d.impl, capability.name, capability.of, capability.methods)
		}
	}
	return nil
}

// call makes a starter of the author's method. The starter converts a panic into an
// error, and returns an error if the method returns neither a task nor an error.
func (d *taskDriver) call(f reflect.Value, method string) starter {
	return func(ctx context.Context, start *StartRequest) (task Task, err error) {
		defer base.Recover(d.impl, method, &err)
		out := f.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(start)})
		if err, _ := out[1].Interface().(error); err != nil {
			return nil, err
		}
		if isNil(out[0]) {
			return nil, noTask(d.impl, method)
		}
		return out[0].Interface().(Task), nil
	}
}

func isNil(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return v.IsNil()
	}
	return false
}
