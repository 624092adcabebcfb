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

// sortKey is the position of an object in a list: by create index, then by namespace, then by name. Fields
// that do not apply to a kind of object are empty. The page token of a list is the text of a sortKey.
type sortKey struct {
	createIndex     uint64
	namespace, name string
}

// newCreationSortKey returns the sort key of objects that are listed by creation or, if the request has a
// prefix, by id.
func (r *request) newCreationSortKey(createIndex uint64, id string) sortKey {
	if r.query.Get("prefix") != "" {
		return sortKey{name: id}
	}
	return sortKey{createIndex: createIndex, name: id}
}

// newNameSortKey returns the sort key of objects that are listed by name. The namespace may be empty.
func newNameSortKey(namespace, name string) sortKey { return sortKey{namespace: namespace, name: name} }

func (s sortKey) compare(q sortKey) int {
	return cmp.Or(cmp.Compare(s.createIndex, q.createIndex), strings.Compare(s.namespace, q.namespace), strings.Compare(s.name, q.name))
}

func (s sortKey) pageToken() string {
	switch {
	case s.createIndex > 0:
		return strconv.FormatUint(s.createIndex, 10) + "." + s.name
	case s.namespace != "":
		return s.namespace + "." + s.name
	}
	return s.name
}

// parsePageTokenOfSameKind parses a page token. The result has the same fields as s. An invalid token is used as a
// name.
func (s sortKey) parsePageTokenOfSameKind(token string) sortKey {
	before, name, cut := strings.Cut(token, ".")
	switch {
	case !cut:
	case s.createIndex > 0:
		if index, err := strconv.ParseUint(before, 10, 64); err == nil {
			return sortKey{createIndex: index, name: name}
		}
	case s.namespace != "":
		return sortKey{namespace: before, name: name}
	}
	return sortKey{name: token}
}

// listPage makes the reply to a list request from stored objects: sorted, filtered by the expression,
// starting at the token, and at most one page. The filter is applied to the stored objects, and
// only the objects on the page are converted to stubs. The result is never nil. sortFilterAndPaginate sets the
// token of the next page.
func listPage[T, S any](r *request, objects []T, sortKeyOf func(T) sortKey, toStub func(T) S) ([]S, error) {
	entries := make([]objectWithSortKey, len(objects))
	for i, o := range objects {
		entries[i] = objectWithSortKey{sortKeyOf(o), o}
	}
	entries, err := r.sortFilterAndPaginate(entries)
	if err != nil {
		return nil, err
	}
	stubs := make([]S, len(entries))
	for i, e := range entries {
		stubs[i] = toStub(e.object.(T))
	}
	return stubs, nil
}

// objectWithSortKey is an object with its sort key.
type objectWithSortKey struct {
	sortKey
	object any
}

// sortFilterAndPaginate sorts entries and returns the entries of the page, in the same array.
func (r *request) sortFilterAndPaginate(entries []objectWithSortKey) ([]objectWithSortKey, error) {
	matches, err := r.newObjectFilter()
	if err != nil {
		return nil, err
	}
	direction := 1
	if r.query.Get("reverse") == "true" {
		direction = -1
	}
	slices.SortStableFunc(entries, func(a, b objectWithSortKey) int { return direction * a.compare(b.sortKey) })
	if token := r.query.Get("next_token"); token != "" && len(entries) > 0 {
		from := entries[0].parsePageTokenOfSameKind(token)
		first, _ := slices.BinarySearchFunc(entries, from, func(e objectWithSortKey, from sortKey) int { return direction * e.compare(from) })
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
			r.nextToken = e.pageToken()
			break
		}
		onPage = append(onPage, e)
	}
	return onPage, nil
}

// objectAsStub converts list entries of kinds that are listed completely: it returns the object itself.
func objectAsStub[T any](o T) T { return o }

// Limits of a filter expression. The number of steps of the parser doubles with each nested parenthesis. Without
// parentheses, an expression of maxFilterBytes takes 100,000 steps.
const (
	maxFilterBytes = 8 << 10
	maxFilterSteps = 200_000
)

// newObjectFilter returns a function that reports whether an object matches the filter in the request's query.
func (r *request) newObjectFilter() (func(object any) (bool, error), error) {
	return r.newObjectFilterOfText(r.query.Get("filter"))
}

func (r *request) newObjectFilterOfText(text string) (func(object any) (bool, error), error) {
	if text == "" {
		return func(any) (bool, error) { return true, nil }, nil
	}
	if len(text) > maxFilterBytes {
		return nil, badRequestError(fmt.Sprintf("failed to create result paginator: failed to read filter expression: longer than %d bytes", maxFilterBytes))
	}
	if r.filterEvaluator == nil {
		filter, err := bexpr.CreateEvaluator(text, bexpr.WithMaxExpressions(maxFilterSteps), bexpr.WithHookFn(derefScalarPointerOrZero))
		if err != nil {
			// Nomad's client continues without the filter if the error starts with the same words as this
			// one.
			return nil, badRequestError("failed to create result paginator: failed to read filter expression: " + err.Error())
		}
		r.filterEvaluator = filter
	}
	return func(object any) (bool, error) {
		if err := r.Context().Err(); err != nil {
			return false, err // the client has disconnected
		}
		ok, err := evaluateFilterRecoveringPanic(r.filterEvaluator, object)
		if err != nil {
			return false, badRequestError("failed to read result page: " + err.Error())
		}
		return ok, nil
	}, nil
}

// evaluateFilterRecoveringPanic evaluates a filter. It returns a panic of the go-bexpr library as an error: the
// library compares values without checking their kinds.
func evaluateFilterRecoveringPanic(filter *bexpr.Evaluator, object any) (ok bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			ok, err = false, fmt.Errorf("filter %q does not fit: %v", filter.Expression(), p)
		}
	}()
	return filter.Evaluate(object)
}

// derefScalarPointerOrZero dereferences pointers to scalars for filters, because they are not pointers in Nomad.
func derefScalarPointerOrZero(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Pointer || v.Type().Elem().Kind() == reflect.Struct {
		return v
	}
	if v.IsNil() {
		return reflect.Zero(v.Type().Elem())
	}
	return v.Elem()
}
