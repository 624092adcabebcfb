package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// noParts are the methods of the client itself that lead to no part of it. ACLOIDC
// leads to ACLAuth without a client.
var noParts = []string{"ACLOIDC", "Address", "Close", "GetNodeClient", "GetNodeClientWithTimeout", "NewLockLeaser", "Raw", "SetNamespace", "SetRegion", "SetSecretID"}

// TestPartsOfACluster calls what there is besides the parts that are tried one by
// one: it belongs to clusters, to storage plugins, or to Nomad Enterprise. Each
// method has an answer, or a refusal that says why.
func TestPartsOfACluster(t *testing.T) {
	if os.Getenv("NOMAD_ADDR") == "" {
		t.Skip("NOMAD_ADDR names no agent")
	}
	c, err := api.NewClient(api.DefaultConfig())
	must(t, err)
	defer c.Close()
	tried := make(map[string]bool)
	for _, p := range parts {
		tried[p.name] = true
	}
	refusedCodes := []int{400, 404, 501}
	calls := 0
	for of := range reflect.TypeOf(c).Methods() {
		if tried[of.Name] || slices.Contains(noParts, of.Name) {
			continue
		}
		part := reflect.ValueOf(c).MethodByName(of.Name).Call(nil)[0]
		for method := range part.Type().Methods() {
			name := of.Name + "." + method.Name
			err := call(t, name, part.MethodByName(method.Name))
			calls++
			var answer api.UnexpectedResponseError
			if errors.As(err, &answer) && (!slices.Contains(refusedCodes, answer.StatusCode()) || answer.Body() == "") {
				t.Errorf("%s: %d %q", name, answer.StatusCode(), answer.Body())
			}
		}
	}
	if calls < 50 {
		t.Errorf("only %d calls", calls)
	}
}

// call calls a method with arguments that mean something, and returns its error.
func call(t *testing.T, name string, method reflect.Value) (err error) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s: the client panics: %v", name, p)
		}
	}()
	var args []reflect.Value
	for in := range method.Type().Ins() {
		args = append(args, argument(in))
	}
	for _, out := range method.Call(args) {
		if e, ok := out.Interface().(error); ok {
			err = e
		}
		if body, ok := out.Interface().(io.Closer); ok {
			_ = body.Close() // nil or not
		}
	}
	return err
}

// argument is a value of a type, with names where there is room for one.
func argument(t reflect.Type) reflect.Value {
	switch v := reflect.New(t).Elem(); t.Kind() {
	case reflect.String:
		v.SetString("x")
		return v
	case reflect.Slice:
		return reflect.Append(v, argument(t.Elem()))
	case reflect.Pointer:
		object := reflect.New(t.Elem())
		if t.Elem() == reflect.TypeFor[api.QueryOptions]() || t.Elem() == reflect.TypeFor[api.WriteOptions]() {
			return object
		}
		for i := range object.Elem().NumField() {
			f := object.Elem().Field(i)
			list := f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Pointer
			if f.CanSet() && (list || f.Kind() == reflect.String) {
				f.Set(argument(f.Type()))
			}
		}
		return object
	case reflect.Interface:
		if t == reflect.TypeFor[context.Context]() {
			return reflect.ValueOf(context.Background())
		}
		if t == reflect.TypeFor[io.Reader]() {
			return reflect.ValueOf(strings.NewReader("x"))
		}
		return v
	default:
		return v
	}
}

var lockTrials = trials{
	"Acquire": func(t *testing.T, e *env) {
		mine, other := e.locks(t, "locks/acquire"), e.locks(t, "locks/acquire")
		path, err := mine.Acquire(t.Context())
		must(t, err)
		equal(t, "path", path, "locks/acquire")
		if _, err := other.Acquire(t.Context()); !errors.Is(err, api.ErrLockConflict) {
			t.Errorf("error %v", err)
		}
		must(t, mine.Release(t.Context()))
	},
	"Renew": func(t *testing.T, e *env) {
		l := e.locks(t, "locks/renew")
		_, err := l.Acquire(t.Context())
		must(t, err)
		must(t, l.Renew(t.Context()))
		must(t, l.Release(t.Context()))
		if err := l.Renew(t.Context()); !errors.Is(err, api.ErrLockConflict) {
			t.Errorf("error %v", err)
		}
	},
	"Release": func(t *testing.T, e *env) {
		if err := e.locks(t, "locks/release").Release(t.Context()); !errors.Is(err, api.ErrLockConflict) {
			t.Errorf("error %v", err)
		}
	},
	// `var lock` does something while it holds a lock.
	"LockTTL": func(t *testing.T, e *env) {
		l := e.locks(t, "locks/leaser")
		held := false
		must(t, e.NewLockLeaser(l, api.LockLeaserOptionWithEarlyReturn(true)).Start(t.Context(), func(context.Context) error {
			v, _, err := e.Variables().Read("locks/leaser", nil)
			held = err == nil && v.Lock != nil && v.Lock.TTL == fmt.Sprint(l.LockTTL())
			return err
		}))
		equal(t, "held", held, true)
	},
}

func (e *env) locks(t *testing.T, path string) *api.Locks {
	t.Helper()
	l, err := e.Locks(api.WriteOptions{}, api.Variable{Path: path, Lock: &api.VariableLock{TTL: "10s", LockDelay: "1s"}}, api.LocksOptionWithMaxRetries(0))
	must(t, err)
	t.Cleanup(func() {
		if v, _, err := e.Variables().Peek(path, nil); err == nil && v != nil && v.Lock == nil {
			_, err := e.Variables().Delete(path, nil)
			must(t, err)
		}
	})
	return l
}
