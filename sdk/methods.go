package sdk

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// The optional interfaces of version 0.1 that a hook, a device plugin, a driver and a task of a driver can
// implement. An interface that is added later is not checked: see DESIGN.md.
var (
	hookInterfaces   = append(hookPointInterfaces(), reflect.TypeFor[HostSetter](), reflect.TypeFor[Configurer]())
	deviceInterfaces = []reflect.Type{reflect.TypeFor[DeviceStatsProvider](), reflect.TypeFor[Watcher](), reflect.TypeFor[Configurer]()}
	driverInterfaces = []reflect.Type{
		reflect.TypeFor[Configurer](), reflect.TypeFor[Fingerprinter](), reflect.TypeFor[Watcher](), reflect.TypeFor[Initializer](),
		reflect.TypeFor[Shutdowner](), reflect.TypeFor[NetworkManager](), reflect.TypeFor[OrphanKiller](),
	}
	taskInterfaces = []reflect.Type{
		reflect.TypeFor[Signaler](), reflect.TypeFor[Stopper](), reflect.TypeFor[Execer](), reflect.TypeFor[StatsProvider](),
		reflect.TypeFor[StateProvider](), reflect.TypeFor[NetworkReporter](), reflect.TypeFor[AttributesProvider](), reflect.TypeFor[Destroyer](),
	}
)

// lastCheckedPoint is the last hook point of version 0.1.
const lastCheckedPoint = hook.Shutdown

func hookPointInterfaces() (interfaces []reflect.Type) {
	for point := range hook.AllPoints() {
		if point <= lastCheckedPoint {
			interfaces = append(interfaces, point.Interface())
		}
	}
	return interfaces
}

// checkOptionalMethods returns an error for a method that looks like a method of one of the
// interfaces, but does not implement it: its signature is different, its name is spelled
// differently, or only a pointer to the value has it.
func checkOptionalMethods(t reflect.Type, interfaces []reflect.Type) error {
	for _, want := range interfaces {
		if t.Implements(want) {
			continue
		}
		if t.Kind() != reflect.Interface && reflect.PointerTo(t).Implements(want) {
			return fmt.Errorf("%v has no method %s, and *%v has: serve a pointer", t, want.Method(0).Name, t)
		}
		for i := range want.NumMethod() {
			wanted := want.Method(i)
			has, ok := t.MethodByName(wanted.Name)
			switch {
			case !ok:
			case methodSignature(t, has) != methodSignature(want, wanted):
				return fmt.Errorf("the method %s of %v is %s; it must be %s", wanted.Name, t, methodSignature(t, has), methodSignature(want, wanted))
			default:
				return fmt.Errorf("%v has the method %s, and not all of %v", t, wanted.Name, want)
			}
		}
	}
	for i := range t.NumMethod() {
		name := t.Method(i).Name
		for _, want := range interfaces {
			for k := range want.NumMethod() {
				if wanted := want.Method(k).Name; name != wanted && strings.EqualFold(name, wanted) {
					return fmt.Errorf("the method %s of %v would never be called: it must have the name %s", name, t, wanted)
				}
			}
		}
	}
	return nil
}

// methodSignature formats the type of a method without its receiver, as an author writes it. of is the type that
// has the method.
func methodSignature(of reflect.Type, method reflect.Method) string {
	in := slices.Collect(method.Type.Ins())
	if of.Kind() != reflect.Interface {
		in = in[1:]
	}
	return reflect.FuncOf(in, slices.Collect(method.Type.Outs()), method.Type.IsVariadic()).String()
}
