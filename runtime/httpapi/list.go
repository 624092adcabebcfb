package httpapi

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-bexpr"
)

// sortKey says where an object stands in a list: by the index at which it was
// made, then by namespace, then by name. What a kind of object does not go by is
// empty. A place is what the token of a page names.
type sortKey struct {
	created         uint64
	namespace, name string
}

// created is the place of what lists go through in the order of creation, or,
// when a prefix is asked for, in the order of ids.
func (r *request) created(index uint64, id string) sortKey {
	if r.query.Get("prefix") != "" {
		return sortKey{name: id}
	}
	return sortKey{created: index, name: id}
}

// named is the place of what lists go through by name. The namespace may be
// empty.
func named(namespace, name string) sortKey { return sortKey{namespace: namespace, name: name} }

func (p sortKey) compare(q sortKey) int {
	return cmp.Or(cmp.Compare(p.created, q.created), strings.Compare(p.namespace, q.namespace), strings.Compare(p.name, q.name))
}

func (p sortKey) token() string {
	switch {
	case p.created > 0:
		return strconv.FormatUint(p.created, 10) + "." + p.name
	case p.namespace != "":
		return p.namespace + "." + p.name
	}
	return p.name
}

// parse reads a token of the same kind of place. What is not one is taken for a
// name.
func (p sortKey) parse(token string) sortKey {
	before, name, cut := strings.Cut(token, ".")
	switch {
	case !cut:
	case p.created > 0:
		if index, err := strconv.ParseUint(before, 10, 64); err == nil {
			return sortKey{created: index, name: name}
		}
	case p.namespace != "":
		return sortKey{namespace: before, name: name}
	}
	return sortKey{name: token}
}

// page makes a list of stored objects into the answer to a request: in order,
// filtered by the expression, from the token on, and not more than a page. The
// filter is applied to the objects as they are stored, and only what is on the
// page becomes a stub. The answer is never nil. It sets the token of the next
// page.
func page[T, S any](r *request, objects []T, key func(T) sortKey, stub func(T) S) ([]S, error) {
	entries := make([]entry, len(objects))
	for i, o := range objects {
		entries[i] = entry{key(o), o}
	}
	entries, err := r.cut(entries)
	if err != nil {
		return nil, err
	}
	stubs := make([]S, len(entries))
	for i, e := range entries {
		stubs[i] = stub(e.object.(T))
	}
	return stubs, nil
}

// entry is an object in its place.
type entry struct {
	sortKey
	object any
}

// cut sorts entries and returns those that are on the page, in the same array.
func (r *request) cut(entries []entry) ([]entry, error) {
	matches, err := r.matcher()
	if err != nil {
		return nil, err
	}
	direction := 1
	if r.query.Get("reverse") == "true" {
		direction = -1
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return direction * a.compare(b.sortKey) })
	if token := r.query.Get("next_token"); token != "" && len(entries) > 0 {
		from := entries[0].parse(token)
		first, _ := slices.BinarySearchFunc(entries, from, func(e entry, from sortKey) int { return direction * e.compare(from) })
		entries = entries[first:]
	}
	r.nextToken = ""
	onPage := entries[:0]
	for _, e := range entries {
		if ok, err := matches(e.object); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		if r.perPage > 0 && len(onPage) == r.perPage {
			r.nextToken = e.token()
			break
		}
		onPage = append(onPage, e)
	}
	return onPage, nil
}

// identity is the stub of what is listed whole.
func identity[T any](o T) T { return o }

// The limits of a filter. The parser's time doubles with each parenthesis within
// another; one expression of a whole filter's length takes 100,000 steps.
const (
	maxFilter      = 8 << 10
	maxFilterSteps = 200_000
)

// matcher returns what tells whether an object is one of those that the filter
// asks for.
func (r *request) matcher() (func(object any) (bool, error), error) {
	text := r.query.Get("filter")
	if text == "" {
		return func(any) (bool, error) { return true, nil }, nil
	}
	if len(text) > maxFilter {
		return nil, bad(fmt.Sprintf("failed to create result paginator: failed to read filter expression: longer than %d bytes", maxFilter))
	}
	if r.filter == nil {
		filter, err := bexpr.CreateEvaluator(text, bexpr.WithMaxExpressions(maxFilterSteps), bexpr.WithHookFn(derefValue))
		if err != nil {
			// The first words make Nomad's client go on without the filter.
			return nil, bad("failed to create result paginator: failed to read filter expression: " + err.Error())
		}
		r.filter = filter
	}
	return func(object any) (bool, error) {
		if err := r.Context().Err(); err != nil {
			return false, err // nobody waits for the rest
		}
		ok, err := evaluate(r.filter, object)
		if err != nil {
			return false, bad("failed to read result page: " + err.Error())
		}
		return ok, nil
	}, nil
}

// evaluate makes an error of a panic: the library compares values of kinds that
// it has not looked at.
func evaluate(filter *bexpr.Evaluator, object any) (ok bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			ok, err = false, fmt.Errorf("filter %q does not fit: %v", filter.Expression(), p)
		}
	}()
	return filter.Evaluate(object)
}

// derefValue shows a filter a value as Nomad has it: scalars are not pointers there.
func derefValue(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Pointer || v.Type().Elem().Kind() == reflect.Struct {
		return v
	}
	if v.IsNil() {
		return reflect.Zero(v.Type().Elem())
	}
	return v.Elem()
}
