package template

import (
	"cmp"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
)

// argumentRule prepares the arguments of a function: it replaces arguments, or returns an error if the result would be too
// large.
type argumentRule func(args []any) error

// sprigRules has the functions of the library sprig that templates can call, with the rule for
// their arguments. The results of all of them are limited after the call too. A rule limits the
// result before the call if the size of the result depends on more than the size of the arguments,
// which is already limited.
var sprigRules = []struct {
	rule  argumentRule
	names string
}{
	{nil, `abbrev abbrevboth adler32sum all any base biggest camelcase clean contains decryptAES default deepEqual dict dir
		empty ext fail fromJson get hasKey hasPrefix hasSuffix hello initials isAbs kebabcase kindIs kindOf list lower
		mustFromJson mustToDate omit osBase osClean osDir osExt osIsAbs pick pluck plural semver semverCompare sha1sum sha256sum
		sha512sum snakecase swapcase ternary toDate trim trimAll trimPrefix trimSuffix trimall trunc tuple typeIs typeIsLike
		typeOf unixEpoch untitle upper regexQuoteMeta`},
	{checkArgsSizeLimit, "cat quote squote toDecimal toJson toRawJson toString toStrings mustToJson mustToRawJson"},
	{checkIndentedArgsSizeLimit, "toPrettyJson mustToPrettyJson"},
	{convertArgsToInts, "add add1 biggest duration max min mul sub"},
	{convertArgsAndCheckDivisor, "div mod"},
	{convertArgsToFloats, "add1f addf ceil divf floor maxf minf mulf subf"},
	{newConvertArgToListRule(0), `append compact first initial last mustAppend mustCompact mustFirst mustInitial mustLast mustPrepend mustPush
		mustRest mustReverse prepend push rest reverse`},
	{convertArgsToLists, "concat"},
	{checkAndConvertChunkArgs, "chunk mustChunk"},
	{checkAndConvertComparisonArgs, "without mustWithout"},
	{checkRepeatArgsLimit, "repeat"},
	{checkIndentArgsLimit, "indent nindent"},
	{checkReplaceArgsLimit, "replace"},
	{checkWrapArgsLimit, "wrap wrapWith"},
	{checkSplitArgsLimit, "split splitList splitn"},
	{newRangeLengthRule(0, 2, 1), "until untilStep"},
	{newRangeLengthRule(0, 1, 2), "seq"},
	{checkURLUserinfoArgs, "urlJoin"},
}

// pureSprigFuncs returns the functions of the library sprig whose results depend only on their
// arguments. Their names in templates start with sprig_.
func pureSprigFuncs() template.FuncMap {
	library := sprig.TxtFuncMap()
	all := template.FuncMap{}
	for _, r := range sprigRules {
		for _, name := range strings.Fields(r.names) {
			all[name] = wrapFuncWithRule(r.rule, reflect.ValueOf(library[name]))
		}
	}
	maps.Copy(all, sprigReplacements(library))
	for name, f := range maps.Clone(all) {
		// For some functions, the library has a variant with the prefix "must" that returns errors
		// instead of ignoring them. Templates have this name for every function, because here no
		// function ignores errors.
		if must := "must" + titleCase(name); all[must] == nil {
			all[must] = f
		}
	}
	return all
}

// sprigReplacements returns functions that replace functions of the library.
func sprigReplacements(library template.FuncMap) template.FuncMap {
	sortAlpha, keys := library["sortAlpha"].(func(any) []string), library["keys"].(func(...map[string]any) []string)
	dateModify := func(by string, at any) (time.Time, error) {
		t, err := toTime(at)
		return library["dateModify"].(func(string, time.Time) time.Time)(by, t), err
	}
	mustDateModify := func(by string, at any) (time.Time, error) {
		if _, err := time.ParseDuration(by); err != nil {
			return time.Time{}, err
		}
		return dateModify(by, at)
	}
	merge := func(dicts ...map[string]any) (map[string]any, error) { return mergeDicts(dicts, false) }
	mergeOverwrite := func(dicts ...map[string]any) (map[string]any, error) { return mergeDicts(dicts, true) }
	return template.FuncMap{
		// For invalid arguments, these functions of the library return the text of the error, or 0,
		// as their result.
		"b64enc":  newBase64EncodeFunc(base64.StdEncoding),
		"b64dec":  newBase64DecodeFunc(base64.StdEncoding),
		"b32enc":  base32Encode,
		"b32dec":  base32Decode,
		"atoi":    func(s string) (int, error) { n, err := toInt(s); return int(n), err },
		"int":     func(v any) (int, error) { n, err := toInt(v); return int(n), err },
		"int64":   toInt,
		"float64": toFloat,

		// These functions of the library work on bytes, fail for indexes outside of the text, or
		// round negative numbers down.
		"nospace": func(s string) string { return strings.Join(strings.Fields(s), "") },
		"title":   titleCase,
		"substr":  substring,
		"round":   roundFloat,

		// These functions of the library ignore nil elements, or do not find an equal value of
		// another type.
		"join":     joinList,
		"has":      func(want, list any) (bool, error) { return containsValue(list, want) },
		"mustHas":  func(want, list any) (bool, error) { return containsValue(list, want) },
		"coalesce": firstNonEmpty,
		"dig":      digIntoDict,
		"slice":    subslice, "mustSlice": subslice,

		// The library compares each pair of elements, which takes too long for a long list.
		"uniq": uniqueElements, "mustUniq": uniqueElements,

		// These functions of the library change their arguments, copy immutable values, or return a
		// random order.
		"merge": merge, "mustMerge": merge, "mergeOverwrite": mergeOverwrite, "mustMergeOverwrite": mergeOverwrite,
		"deepCopy": func(v any) any { return v }, "mustDeepCopy": func(v any) any { return v },
		"sortAlpha": func(list any) ([]string, error) {
			l, err := toAnySlice(list)
			if err == nil {
				err = checkArgsSizeLimit(l)
			}
			if err != nil {
				return nil, err
			}
			return sortAlpha(l), nil
		},
		"keys": func(dicts ...map[string]any) ([]string, error) {
			if _, err := valueSize(dicts); err != nil {
				return nil, err
			}
			return slices.Sorted(slices.Values(keys(dicts...))), nil
		},
		"values": func(d map[string]any) ([]any, error) { return checkValueSizeLimit(valuesInKeyOrder(d)) },

		// Instead of returning an error, the library uses the current time for a value that is no
		// time, and UTC for an unknown zone.
		"date":         func(layout string, at any) (string, error) { return formatTime(layout, at, "Local") },
		"htmlDate":     func(at any) (string, error) { return formatTime(time.DateOnly, at, "Local") },
		"dateInZone":   formatTime,
		"date_in_zone": formatTime,
		"dateModify":   dateModify, "date_modify": dateModify, "mustDateModify": mustDateModify, "must_date_modify": mustDateModify,
		"htmlDateInZone": func(at any, zone string) (string, error) { return formatTime(time.DateOnly, at, zone) },

		"urlParse": func(s string) (any, error) {
			if _, err := url.Parse(s); err != nil {
				return nil, errors.Unwrap(err) // Unwrap removes the URL, which may have a password
			}
			return library["urlParse"].(func(string) map[string]any)(s), nil
		},

		"regexMatch": regexMatch, "mustRegexMatch": regexMatch,
		"regexFind": regexFind, "mustRegexFind": regexFind,
		"regexFindAll": regexFindAll, "mustRegexFindAll": regexFindAll,
		"regexSplit": regexSplit, "mustRegexSplit": regexSplit,
		"regexReplaceAll": sprigRegexReplaceAll, "mustRegexReplaceAll": sprigRegexReplaceAll,
		"regexReplaceAllLiteral": regexReplaceAllLiteral, "mustRegexReplaceAllLiteral": regexReplaceAllLiteral,
	}
}

// wrapFuncWithRule returns a function that applies a rule to its arguments, calls f, and limits the size of the result.
func wrapFuncWithRule(rule argumentRule, f reflect.Value) any {
	t := f.Type()
	in := make([]reflect.Type, t.NumIn())
	for i := range in {
		in[i] = t.In(i)
	}
	fail := func(err error) []reflect.Value {
		return []reflect.Value{reflect.Zero(t.Out(0)), reflect.ValueOf(&err).Elem()}
	}
	call := func(values []reflect.Value) []reflect.Value {
		if rule != nil {
			var args []any
			for i, v := range values {
				if t.IsVariadic() && i == len(values)-1 {
					for j := range v.Len() {
						args = append(args, v.Index(j).Interface())
					}
					continue
				}
				args = append(args, v.Interface())
			}
			if err := rule(args); err != nil {
				return fail(err)
			}
			values = values[:0]
			for i, a := range args {
				param := t.In(min(i, len(in)-1))
				if t.IsVariadic() && i >= len(in)-1 {
					param = param.Elem()
				}
				v := reflect.New(param).Elem()
				if a != nil {
					v.Set(reflect.ValueOf(a))
				}
				values = append(values, v)
			}
		}
		var results []reflect.Value
		if t.IsVariadic() && rule == nil {
			results = f.CallSlice(values)
		} else {
			results = f.Call(values)
		}
		if len(results) > 1 && !results[1].IsNil() {
			return results
		}
		if err := checkResultSizeLimit(results[0].Interface()); err != nil {
			return fail(err)
		}
		return append(results[:1], reflect.Zero(reflect.TypeFor[error]()))
	}
	return reflect.MakeFunc(reflect.FuncOf(in, []reflect.Type{t.Out(0), reflect.TypeFor[error]()}, t.IsVariadic()), call).Interface()
}

func checkResultSizeLimit(v any) error {
	if s, ok := v.(string); ok {
		_, err := checkTextLengthLimit(s)
		return err
	}
	_, err := valueSize(v)
	return err
}

func checkArgsSizeLimit(args []any) error {
	_, err := valueSize(args)
	return err
}

func checkIndentedArgsSizeLimit(args []any) error { return checkIndentedSizeLimit(args, jsonIndent) }

func convertArgsToInts(args []any) (err error) {
	for i := range args {
		if args[i], err = toInt(args[i]); err != nil {
			return err
		}
	}
	return nil
}

func convertArgsAndCheckDivisor(args []any) error {
	err := convertArgsToInts(args)
	if err == nil && args[1] == int64(0) {
		err = errors.New("a division by zero")
	}
	return err
}

// maxDecimals limits the number of arguments of functions that calculate with decimal numbers: the result of each step can
// have 600 digits more than the step before.
const maxDecimals = 1000

func convertArgsToFloats(args []any) (err error) {
	if len(args) > maxDecimals {
		return fmt.Errorf("more than %d numbers", maxDecimals)
	}
	for i := range args {
		if args[i], err = toFloat(args[i]); err != nil {
			return err
		}
	}
	return nil
}

func newConvertArgToListRule(index int) argumentRule {
	return func(args []any) error {
		l, err := toAnySlice(args[index])
		args[index] = l
		return err
	}
}

func convertArgsToLists(args []any) error {
	for i := range args {
		if err := newConvertArgToListRule(i)(args); err != nil {
			return err
		}
	}
	return checkArgsSizeLimit(args)
}

func checkAndConvertChunkArgs(args []any) error {
	if size := args[0].(int); size < 1 {
		return fmt.Errorf("chunks of %d", size)
	}
	return newConvertArgToListRule(1)(args)
}

// checkAndConvertComparisonArgs limits the cost of comparing each element of a list with all other arguments.
func checkAndConvertComparisonArgs(args []any) error {
	if err := checkRepeatedValueSizeLimit(len(args)-1, args[0]); err != nil {
		return err
	}
	return newConvertArgToListRule(0)(args)
}

func checkRepeatArgsLimit(args []any) error {
	return checkCopiedTextLengthLimit(args[0].(int), len(args[1].(string)), 0)
}

func checkIndentArgsLimit(args []any) error {
	return checkIndentedTextLengthLimit(args[0].(int), args[1].(string))
}

func checkReplaceArgsLimit(args []any) error {
	return checkReplacedTextLengthLimit(args[0].(string), args[1].(string), args[2].(string))
}

// checkWrapArgsLimit limits the length of a wrapped text. Two consecutive lines are together longer than the
// width, which limits the number of separators.
func checkWrapArgsLimit(args []any) error {
	separator, text := "\n", args[len(args)-1].(string)
	if len(args) == 3 {
		separator = args[1].(string)
	}
	return checkCopiedTextLengthLimit(2*(len(text)/max(1, args[0].(int)))+1, len(separator), len(text))
}

func checkSplitArgsLimit(args []any) error {
	return checkSplitPartCountLimit(args[len(args)-1].(string), args[0].(string))
}

// newRangeLengthRule returns a rule that limits the number of elements of a range. Of three arguments,
// those at the given positions are the start, the step and the end. A single argument is the end,
// two arguments are the start and the end.
func newRangeLengthRule(fromAt, stepAt, toAt int) argumentRule {
	return func(args []any) error {
		from, step, to := 0, 1, 0
		switch len(args) {
		case 1:
			to = args[0].(int)
		case 2:
			from, to = args[0].(int), args[1].(int)
		case 3:
			from, step, to = args[fromAt].(int), args[stepAt].(int), args[toAt].(int)
		default:
			return errors.New("seq takes one to three numbers")
		}
		const largest = math.MaxInt / 8 // sums of two such numbers do not overflow
		for _, n := range []int{from, step, to} {
			if n > largest || n < -largest {
				return fmt.Errorf("a range with the number %d", n)
			}
		}
		if step == 0 {
			return nil
		}
		return checkListLengthLimit(max(from-to, to-from) / max(step, -step))
	}
}

// checkURLUserinfoArgs returns an error for a user name or password with an invalid character. The library
// would panic with a text that contains the password.
func checkURLUserinfoArgs(args []any) error {
	userinfo, _ := args[0].(map[string]any)["userinfo"].(string)
	if _, err := url.Parse("proto://" + userinfo + "@host"); err != nil {
		return errors.New("the user name or the password has an invalid character")
	}
	return nil
}

func base32Encode(s string) (string, error) {
	return checkTextLengthLimit(base32.StdEncoding.EncodeToString([]byte(s)))
}

func base32Decode(s string) (string, error) {
	b, err := base32.StdEncoding.DecodeString(s)
	return string(b), err
}

// firstNonEmpty returns the first argument that is not empty, or the last one.
func firstNonEmpty(v ...any) any {
	for _, one := range v {
		if truth, _ := template.IsTrue(one); truth {
			return one
		}
	}
	if len(v) == 0 {
		return nil
	}
	return v[len(v)-1]
}

// substring returns s[from:to], limited to the length of s. A negative from means
// the start, a negative to means the end.
func substring(from, to int, s string) string {
	from = min(max(0, from), len(s))
	if to < 0 || to > len(s) {
		to = len(s)
	}
	return s[from:max(from, to)]
}

// roundFloat rounds a half up.
func roundFloat(v any, places int) (float64, error) {
	f, err := toFloat(v)
	unit := math.Pow10(places)
	return math.Floor(f*unit+0.5) / unit, err
}

// toAnySlice returns the elements of any list as a new []any.
func toAnySlice(list any) ([]any, error) {
	v := reflect.ValueOf(list)
	if k := v.Kind(); k == reflect.Invalid {
		return nil, nil
	} else if k != reflect.Slice && k != reflect.Array {
		return nil, fmt.Errorf("%T is no list", list)
	}
	all := make([]any, v.Len())
	for i := range all {
		all[i] = v.Index(i).Interface()
	}
	return all, nil
}

// subslice returns list[from:to], with indexes limited to the length of the
// list.
func subslice(list any, bounds ...any) ([]any, error) {
	l, err := toAnySlice(list)
	at := [2]int{0, len(l)}
	for i := 0; err == nil && i < min(2, len(bounds)); i++ {
		var n int64
		n, err = toInt(bounds[i])
		at[i] = int(min(max(0, n), int64(len(l))))
	}
	return l[at[0]:max(at[0], at[1])], err
}

// uniqueElements returns a list without the elements that are equal to an earlier element.
func uniqueElements(list any) ([]any, error) {
	l, err := toAnySlice(list)
	if err == nil {
		err = checkArgsSizeLimit(l)
	}
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(l, func(v any) bool {
		text := fmt.Sprintf("%#v", v)
		was := seen[text]
		seen[text] = true
		return was
	}), nil
}

func mergeDicts(dicts []map[string]any, override bool) (map[string]any, error) {
	if err := checkRepeatedValueSizeLimit(len(dicts), dicts); err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, d := range dicts {
		out = mergeMaps(out, d, override)
	}
	return checkValueSizeLimit(out)
}

// valuesInKeyOrder returns the values of a dictionary in the order of their keys.
func valuesInKeyOrder(d map[string]any) []any {
	all := []any{}
	for _, k := range slices.Sorted(maps.Keys(d)) {
		all = append(all, d[k])
	}
	return all
}

// digIntoDict follows keys into a dictionary. The dictionary is the last argument, and
// the default value comes before it.
func digIntoDict(keysDefaultAndDict ...any) (any, error) {
	n := len(keysDefaultAndDict) - 2
	if n < 1 {
		return nil, errors.New("dig takes keys, a default and a dictionary")
	}
	at := keysDefaultAndDict[n+1]
	for _, k := range keysDefaultAndDict[:n] {
		d, _ := at.(map[string]any)
		next, ok := d[fmt.Sprint(k)]
		if !ok {
			return keysDefaultAndDict[n], nil
		}
		at = next
	}
	return at, nil
}

// toInt converts numbers and strings to an integer. Fractions are cut off.
func toInt(v any) (int64, error) {
	if n := reflect.ValueOf(v); n.IsValid() && (n.CanInt() || n.CanUint()) {
		return toInt64(n), nil
	}
	if n := reflect.ValueOf(v); n.Kind() == reflect.String {
		if n, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
			return n, nil
		}
	}
	f, err := toFloat(v)
	return int64(f), err
}

func toFloat(v any) (float64, error) {
	switch n := reflect.ValueOf(v); {
	case !n.IsValid():
		return 0, nil
	case isNumeric(n):
		return toFloat64(n), nil
	case n.Kind() == reflect.String:
		return strconv.ParseFloat(cmp.Or(n.String(), "0"), 64)
	}
	return 0, fmt.Errorf("%T is no number", v)
}

// toTime converts a time, or a number of seconds since 1970, to a time.
func toTime(v any) (time.Time, error) {
	if t, ok := v.(time.Time); ok {
		return t, nil
	}
	n, err := toInt(v)
	return time.Unix(n, 0), err
}

// formatTime formats a time in UTC or in the zone of the host. Other zones are
// not available, because templates cannot open the zone files.
func formatTime(layout string, at any, zone string) (string, error) {
	where := map[string]*time.Location{"": time.UTC, "UTC": time.UTC, "Local": time.Local}[zone]
	if where == nil {
		return "", fmt.Errorf("no zone %q here: there are UTC and Local", zone)
	}
	t, err := toTime(at)
	if err != nil {
		return "", err
	}
	if err := checkCopiedTextLengthLimit(longestField, len(layout), 0); err != nil {
		return "", err
	}
	return t.In(where).Format(layout), nil
}

// longestField is the largest factor by which a formatted time is longer than a field of its
// layout: the year 2006 can become 292277026596.
const longestField = 3
