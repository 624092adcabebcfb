package sdk

import (
	"context"
	"errors"
	"fmt"
	"reflect"
)

// taskDriver is an author's driver whose T is known only when the program runs.
type taskDriver struct {
	impl    Plugin
	task    reflect.Type // T
	start   starter
	recover starter // nil: it is no Recoverer
}

// starter is Start of a Driver, or Recover of a Recoverer.
type starter func(context.Context, *Start) (Task, error)

// newTaskDriver takes a value that has a method Start.
func newTaskDriver(impl Plugin) (*taskDriver, error) {
	d := &taskDriver{impl: impl}
	v := reflect.ValueOf(impl)
	start := v.MethodByName("Start")
	if d.task = started(start.Type()); d.task == nil {
		return nil, fmt.Errorf("the method Start of %T is %v; a driver's is func(context.Context, *sdk.Start) (T, error), where T has the methods of sdk.Task", impl, start.Type())
	}
	if err := errors.Join(nearMiss(reflect.TypeOf(impl), driverInterfaces), nearMiss(d.task, taskInterfaces)); err != nil {
		return nil, err
	}
	d.start = call(start)
	if recover := v.MethodByName("Recover"); recover.IsValid() {
		if recover.Type() != start.Type() {
			return nil, fmt.Errorf("the method Recover of %T is %v, and Start is %v; they must be the same", impl, recover.Type(), start.Type())
		}
		d.recover = call(recover)
	}
	return d, nil
}

// started is the T of a Start with this signature; nil if it is none.
func started(f reflect.Type) reflect.Type {
	if f.NumIn() != 2 || f.In(0) != reflect.TypeFor[context.Context]() || f.In(1) != reflect.TypeFor[*Start]() ||
		f.NumOut() != 2 || !f.Out(0).Implements(reflect.TypeFor[Task]()) || f.Out(1) != reflect.TypeFor[error]() {
		return nil
	}
	return f.Out(0)
}

func call(f reflect.Value) starter {
	return func(ctx context.Context, start *Start) (Task, error) {
		out := f.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(start)})
		task, _ := out[0].Interface().(Task)
		err, _ := out[1].Interface().(error)
		return task, err
	}
}
