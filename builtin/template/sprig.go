package template

import (
	"cmp"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"

	"github.com/Masterminds/semver/v3"
)

// sprigFuncs returns the functions of the library sprig that depend only on their
// arguments. Their names in templates start with sprig_.
func sprigFuncs() template.FuncMap {
	return template.FuncMap{
		"default":  func(otherwise any, v ...any) any { return firstNonEmpty(append(v, otherwise)...) },
		"coalesce": firstNonEmpty,
		"empty":    isEmpty,
		"all":      func(v ...any) bool { return !slices.ContainsFunc(v, isEmpty) },
		"any":      func(v ...any) bool { return slices.ContainsFunc(v, func(one any) bool { return !isEmpty(one) }) },
		"ternary":  func(yes, no any, which bool) any { return map[bool]any{true: yes, false: no}[which] },
		"fail":     func(text string) (string, error) { return "", errors.New(text) },

		"trim":       strings.TrimSpace,
		"trimPrefix": func(prefix, s string) string { return strings.TrimPrefix(s, prefix) },
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"trimAll":    func(cutset, s string) string { return strings.Trim(s, cutset) },
		"nospace":    func(s string) string { return strings.Join(strings.Fields(s), "") },
		"upper":      strings.ToUpper,
		"lower":      strings.ToLower,
		"title":      titleCase,
		"repeat":     repeatText,
		"substr":     substring,
		"trunc":      truncateText,
		"abbrev":     abbreviateText,
		"snakecase":  func(s string) string { return strings.ToLower(strings.Join(splitWords(s), "_")) },
		"kebabcase":  func(s string) string { return strings.ToLower(strings.Join(splitWords(s), "-")) },
		"camelcase":  camelCase,
		"plural": func(one, many string, n int) string {
			if n == 1 {
				return one
			}
			return many
		},
		"contains":  func(part, s string) bool { return strings.Contains(s, part) },
		"hasPrefix": func(prefix, s string) bool { return strings.HasPrefix(s, prefix) },
		"hasSuffix": func(suffix, s string) bool { return strings.HasSuffix(s, suffix) },
		"quote":     limitedPrintFunc(func(v ...any) string { return mapAndJoin(v, strconv.Quote) }),
		"squote":    limitedPrintFunc(func(v ...any) string { return mapAndJoin(v, func(s string) string { return "'" + s + "'" }) }),
		"cat":       limitedPrintFunc(func(v ...any) string { return mapAndJoin(v, func(s string) string { return s }) }),
		"indent":    func(n int, s string) (string, error) { return indentWithPrefix("", n, s) },
		"nindent":   func(n int, s string) (string, error) { return indentWithPrefix("\n", n, s) },
		"replace":   replaceAll,

		"regexMatch":      regexMatch,
		"regexFind":       regexFind,
		"regexFindAll":    regexFindAll,
		"regexSplit":      regexSplit,
		"regexQuoteMeta":  func(s string) (string, error) { return limitLength(regexp.QuoteMeta(s)) },
		"regexReplaceAll": sprigRegexReplaceAll,

		"join":      func(by string, list any) (string, error) { return joinList(by, list) },
		"split":     func(by, s string) map[string]string { return numberedDict(strings.Split(s, by)) },
		"splitn":    func(by string, n int, s string) map[string]string { return numberedDict(strings.SplitN(s, by, n)) },
		"splitList": func(by, s string) []string { return strings.Split(s, by) },
		"toStrings": toStrings,
		"sortAlpha": func(list any) ([]string, error) {
			l, err := toStrings(list)
			slices.Sort(l)
			return l, err
		},

		"add": func(v ...any) (int64, error) {
			return reduceInts(v, func(a, b int64) (int64, error) { return a + b, nil })
		},
		"sub": func(a, b any) (int64, error) {
			return reduceInts([]any{a, b}, func(a, b int64) (int64, error) { return a - b, nil })
		},
		"mul": func(v ...any) (int64, error) {
			return reduceInts(v, func(a, b int64) (int64, error) { return a * b, nil })
		},
		"div": func(a, b any) (int64, error) {
			return reduceInts([]any{a, b}, func(a, b int64) (int64, error) { return divideInts(b, a) })
		},
		"mod": func(a, b any) (int64, error) {
			return reduceInts([]any{a, b}, func(a, b int64) (int64, error) { return moduloInts(b, a) })
		},
		"max": func(v ...any) (int64, error) {
			return reduceInts(v, func(a, b int64) (int64, error) { return max(a, b), nil })
		},
		"min": func(v ...any) (int64, error) {
			return reduceInts(v, func(a, b int64) (int64, error) { return min(a, b), nil })
		},
		"add1":      func(v any) (int64, error) { n, err := toInt(v); return n + 1, err },
		"until":     intRange,
		"untilStep": intRangeWithStep,
		"seq":       formatSequence,

		"addf":  func(v ...any) (float64, error) { return reduceFloats(v, func(a, b float64) float64 { return a + b }) },
		"subf":  func(v ...any) (float64, error) { return reduceFloats(v, func(a, b float64) float64 { return a - b }) },
		"mulf":  func(v ...any) (float64, error) { return reduceFloats(v, func(a, b float64) float64 { return a * b }) },
		"divf":  func(v ...any) (float64, error) { return reduceFloats(v, func(a, b float64) float64 { return a / b }) },
		"floor": func(v any) (float64, error) { f, err := toFloat(v); return math.Floor(f), err },
		"ceil":  func(v any) (float64, error) { f, err := toFloat(v); return math.Ceil(f), err },
		"round": func(v any, places int) (float64, error) {
			f, err := toFloat(v)
			unit := math.Pow10(places)
			return math.Floor(f*unit+0.5) / unit, err
		},

		"int":      toInt,
		"int64":    toInt,
		"float64":  toFloat,
		"atoi":     func(s string) (int64, error) { return toInt(s) },
		"toString": limitedPrintFunc(func(v ...any) string { return fmt.Sprint(v...) }),

		"date":       func(layout string, at any) (string, error) { return formatTime(layout, at, time.Local) },
		"htmlDate":   func(at any) (string, error) { return formatTime(time.DateOnly, at, time.Local) },
		"dateInZone": dateInZone,
		"dateModify": dateModify,
		"toDate":     func(layout, s string) (time.Time, error) { return time.ParseInLocation(layout, s, time.Local) },
		"unixEpoch":  func(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) },
		"duration":   formatSeconds,

		"b64enc":    base64Encoder(base64.StdEncoding),
		"b64dec":    base64Decoder(base64.StdEncoding),
		"b32enc":    func(s string) (string, error) { return limitLength(base32.StdEncoding.EncodeToString([]byte(s))) },
		"b32dec":    func(s string) (string, error) { b, err := base32.StdEncoding.DecodeString(s); return string(b), err },
		"sha1sum":   func(s string) string { return fmt.Sprintf("%x", sha1.Sum([]byte(s))) },
		"sha256sum": func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) },
		"sha512sum": func(s string) string { return fmt.Sprintf("%x", sha512.Sum512([]byte(s))) },
		"urlParse":  urlParse,

		"fromJson":     parseJSON,
		"toJson":       newJSONEncodeFunc("", true),
		"toPrettyJson": newJSONEncodeFunc("  ", true),
		"toRawJson":    newJSONEncodeFunc("", false),

		"list":   func(v ...any) ([]any, error) { return limitValueSize(v) },
		"tuple":  func(v ...any) ([]any, error) { return limitValueSize(v) },
		"first":  func(list any) (any, error) { return elementAt(list, 0) },
		"last":   func(list any) (any, error) { return elementAt(list, -1) },
		"append": func(list, v any) ([]any, error) { return concatLists(list, []any{v}) },
		"concat": concatLists,
		"rest":   func(list any) ([]any, error) { return subslice(list, 1, math.MaxInt) },
		"initial": func(list any) ([]any, error) {
			l, err := toAnySlice(list)
			return l[:max(0, len(l)-1)], err
		},
		"prepend": func(list, v any) ([]any, error) { return concatLists([]any{v}, list) },
		"reverse": func(list any) ([]any, error) {
			l, err := toAnySlice(list)
			slices.Reverse(l)
			return l, err
		},
		"without": func(list any, unwanted ...any) ([]any, error) {
			l, err := toAnySlice(list)
			return slices.DeleteFunc(l, func(v any) bool {
				return slices.ContainsFunc(unwanted, func(u any) bool { return reflect.DeepEqual(u, v) })
			}), err
		},
		"compact": func(list any) ([]any, error) {
			l, err := toAnySlice(list)
			return slices.DeleteFunc(l, isEmpty), err
		},
		"slice": func(list any, bounds ...int) ([]any, error) {
			from, to := 0, math.MaxInt
			for i, at := range []*int{&from, &to} {
				if i < len(bounds) {
					*at = bounds[i]
				}
			}
			return subslice(list, from, to)
		},
		"chunk": chunkList,
		"uniq":  uniqueElements,
		"has":   func(want, list any) (bool, error) { return containsValue(list, want) },

		"dict": newDict,
		"get": func(d map[string]any, k string) any {
			if v, ok := d[k]; ok {
				return v
			}
			return ""
		},
		"hasKey":         func(d map[string]any, k string) bool { _, ok := d[k]; return ok },
		"dig":            dig,
		"pick":           func(d map[string]any, keys ...string) map[string]any { return filterKeys(d, keys, true) },
		"omit":           func(d map[string]any, keys ...string) map[string]any { return filterKeys(d, keys, false) },
		"pluck":          pluck,
		"values":         func(d map[string]any) ([]any, error) { return limitValueSize(sortedValues(d)) },
		"deepCopy":       func(v any) any { return v }, // values are immutable
		"keys":           func(dicts ...map[string]any) []string { return slices.Sorted(maps.Keys(mergeDicts(dicts, true))) },
		"merge":          func(dicts ...map[string]any) (map[string]any, error) { return limitValueSize(mergeDicts(dicts, false)) },
		"mergeOverwrite": func(dicts ...map[string]any) (map[string]any, error) { return limitValueSize(mergeDicts(dicts, true)) },

		"base":  path.Base,
		"dir":   path.Dir,
		"ext":   path.Ext,
		"clean": path.Clean,
		"isAbs": path.IsAbs,

		"kindOf":    func(v any) string { return reflect.ValueOf(v).Kind().String() },
		"kindIs":    func(kind string, v any) bool { return reflect.ValueOf(v).Kind().String() == kind },
		"typeOf":    func(v any) string { return fmt.Sprintf("%T", v) },
		"typeIs":    func(kind string, v any) bool { return fmt.Sprintf("%T", v) == kind },
		"deepEqual": func(a, b any) bool { return reflect.DeepEqual(a, b) },

		"semver": semver.NewVersion,
		"semverCompare": func(constraint, v string) (bool, error) {
			c, err := semver.NewConstraint(constraint)
			if err != nil {
				return false, err
			}
			version, err := semver.NewVersion(v)
			return err == nil && c.Check(version), err
		},
	}
}

func isEmpty(v any) bool {
	truth, _ := template.IsTrue(v)
	return !truth
}

// firstNonEmpty returns the first argument that is not empty, or the last one.
func firstNonEmpty(v ...any) any {
	for _, one := range v {
		if !isEmpty(one) {
			return one
		}
	}
	if len(v) == 0 {
		return nil
	}
	return v[len(v)-1]
}

func repeatText(n int, s string) (string, error) {
	if n < 0 || len(s) > 0 && n > maxContentSize/len(s) {
		return "", fmt.Errorf("a text of more than %d bytes", maxContentSize)
	}
	return strings.Repeat(s, n), nil
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

// truncateText returns the first n bytes, or the last -n bytes if n is negative.
func truncateText(n int, s string) string {
	if n < 0 {
		return s[max(0, len(s)+n):]
	}
	return s[:min(n, len(s))]
}

// mapAndJoin applies how to each value that is not nil, and joins the results
// with blanks.
func mapAndJoin(v []any, how func(string) string) string {
	var mappedTexts []string
	for _, one := range v {
		if one != nil {
			mappedTexts = append(mappedTexts, how(fmt.Sprint(one)))
		}
	}
	return strings.Join(mappedTexts, " ")
}

func indentWithPrefix(before string, n int, s string) (string, error) {
	out, err := indentLines(n, s+"x") // with the added x, an empty last line is indented too
	return before + strings.TrimSuffix(out, "x"), err
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

func toStrings(list any) ([]string, error) {
	l, err := toAnySlice(list)
	if err != nil {
		return nil, err
	}
	if _, err := valueSize(list); err != nil {
		return nil, err
	}
	all := make([]string, len(l))
	for i, v := range l {
		all[i] = fmt.Sprint(v)
	}
	return all, nil
}

// elementAt returns an element of a list, or nil if the list is empty. A negative i
// counts from the end.
func elementAt(list any, i int) (any, error) {
	l, err := toAnySlice(list)
	if len(l) == 0 {
		return nil, err
	}
	return l[(i+len(l))%len(l)], nil
}

func concatLists(lists ...any) ([]any, error) {
	var all []any
	for _, list := range lists {
		l, err := toAnySlice(list)
		if err != nil {
			return nil, err
		}
		all = append(all, l...)
	}
	return limitValueSize(all)
}

func uniqueElements(list any) ([]any, error) {
	l, err := toAnySlice(list)
	seen := map[string]bool{}
	return slices.DeleteFunc(l, func(v any) bool {
		text := fmt.Sprint(v)
		was := seen[text]
		seen[text] = true
		return was
	}), err
}

func newDict(pairs ...any) (map[string]any, error) {
	d := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		var v any = ""
		if i+1 < len(pairs) {
			v = pairs[i+1]
		}
		d[fmt.Sprint(pairs[i])] = v
	}
	return limitValueSize(d)
}

func mergeDicts(dicts []map[string]any, override bool) map[string]any {
	out := map[string]any{}
	for _, d := range dicts {
		out = mergeMaps(out, d, override)
	}
	return out
}

// toInt converts numbers and strings to an integer. Fractions are cut off.
func toInt(v any) (int64, error) {
	if n := reflect.ValueOf(v); n.IsValid() && (n.CanInt() || n.CanUint()) {
		return toInt64(n), nil
	}
	if n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64); err == nil {
		return n, nil
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

// reduceInts applies do to the first two numbers of the list, then to the result
// and the third number, and so on.
func reduceInts(v []any, do func(a, b int64) (int64, error)) (result int64, err error) {
	for i, one := range v {
		n, err := toInt(one)
		if err == nil && i == 0 {
			result = n
		} else if err == nil {
			result, err = do(result, n)
		}
		if err != nil {
			return 0, err
		}
	}
	return result, nil
}

// intRange counts from 0 up to n, exclusive; n may be negative.
func intRange(n int) ([]int, error) {
	if n > maxTemplateBodyExecutions || n < -maxTemplateBodyExecutions {
		return nil, fmt.Errorf("a list of more than %d numbers", maxTemplateBodyExecutions)
	}
	list := make([]int, max(n, -n))
	for i := range list {
		if list[i] = i; n < 0 {
			list[i] = -i
		}
	}
	return list, nil
}

// toTime converts a time, or a number of seconds since 1970, to a time.
func toTime(v any) (time.Time, error) {
	if t, ok := v.(time.Time); ok {
		return t, nil
	}
	n, err := toInt(v)
	return time.Unix(n, 0), err
}

func formatTime(layout string, v any, where *time.Location) (string, error) {
	t, err := toTime(v)
	return t.In(where).Format(layout), err
}

// dateInZone formats a time in UTC or in the zone of the host. Other zones are
// not available, because templates cannot open the zone files.
func dateInZone(layout string, v any, zone string) (string, error) {
	where := map[string]*time.Location{"": time.UTC, "UTC": time.UTC, "Local": time.Local}[zone]
	if where == nil {
		return "", fmt.Errorf("no zone %q here: there are UTC and Local", zone)
	}
	return formatTime(layout, v, where)
}

// formatSeconds formats a number of seconds for display.
func formatSeconds(seconds any) (string, error) {
	n, err := toInt(seconds)
	return (time.Duration(n) * time.Second).String(), err
}

func dateModify(by string, at any) (time.Time, error) {
	t, err := toTime(at)
	if err != nil {
		return t, err
	}
	d, err := time.ParseDuration(by)
	return t.Add(d), err
}

// intRangeWithStep returns the numbers from, from+by, from+2*by, … that come before to.
func intRangeWithStep(from, to, by int) ([]int, error) {
	var numbers []int
	for at := from; by > 0 && at < to || by < 0 && at > to; at += by {
		if numbers = append(numbers, at); len(numbers) > maxTemplateBodyExecutions {
			return nil, fmt.Errorf("a list of more than %d numbers", maxTemplateBodyExecutions)
		}
	}
	return numbers, nil
}

// formatSequence returns a sequence of numbers, separated by blanks. The arguments are those
// of the program seq: to, or from and to, or from, step and to.
func formatSequence(bounds ...int) (string, error) {
	from, by, to := 1, 1, 0
	switch len(bounds) {
	case 1:
		to = bounds[0]
	case 2:
		from, to = bounds[0], bounds[1]
	case 3:
		from, by, to = bounds[0], bounds[1], bounds[2]
	default:
		return "", errors.New("seq takes one to three numbers")
	}
	if len(bounds) < 3 && to < from {
		by = -1
	}
	end := to + 1 // intRangeWithStep excludes the last number, seq includes it
	if by < 0 {
		end = to - 1
	}
	list, err := intRangeWithStep(from, end, by)
	return strings.Trim(fmt.Sprint(list), "[]"), err
}

// reduceFloats is reduceInts for floating-point numbers.
func reduceFloats(v []any, do func(a, b float64) float64) (result float64, err error) {
	for i, one := range v {
		n, err := toFloat(one)
		if err != nil {
			return 0, err
		}
		if result = do(result, n); i == 0 {
			result = n
		}
	}
	return result, nil
}

// subslice returns list[from:to], with indexes limited to the length of the
// list.
func subslice(list any, from, to int) ([]any, error) {
	l, err := toAnySlice(list)
	from = min(max(0, from), len(l))
	return l[from:min(max(from, to), len(l))], err
}

func chunkList(size int, list any) ([][]any, error) {
	l, err := toAnySlice(list)
	if size < 1 {
		return nil, fmt.Errorf("chunks of %d", size)
	}
	return slices.Collect(slices.Chunk(l, size)), err
}

// filterKeys returns a copy of the dictionary with only the given keys, or without the
// given keys.
func filterKeys(d map[string]any, keys []string, with bool) map[string]any {
	d = maps.Clone(d)
	maps.DeleteFunc(d, func(k string, _ any) bool { return slices.Contains(keys, k) != with })
	return d
}

// pluck returns the values of a key in several dictionaries.
func pluck(key string, dicts ...map[string]any) ([]any, error) {
	all := []any{}
	for _, d := range dicts {
		if v, ok := d[key]; ok {
			all = append(all, v)
		}
	}
	return limitValueSize(all)
}

// sortedValues returns the values of a dictionary in the order of their keys.
func sortedValues(d map[string]any) []any {
	all := []any{}
	for _, k := range slices.Sorted(maps.Keys(d)) {
		all = append(all, d[k])
	}
	return all
}

// dig follows keys into a dictionary. The dictionary is the last argument, and
// the default value comes before it.
func dig(path ...any) (any, error) {
	n := len(path) - 2
	if n < 1 {
		return nil, errors.New("dig takes keys, a default and a dictionary")
	}
	at := path[n+1]
	for _, k := range path[:n] {
		d, _ := at.(map[string]any)
		next, ok := d[fmt.Sprint(k)]
		if !ok {
			return path[n], nil
		}
		at = next
	}
	return at, nil
}

// numberedDict returns a dictionary that maps _0, _1, … to the parts of a text.
func numberedDict(parts []string) map[string]string {
	d := map[string]string{}
	for i, s := range parts {
		d["_"+strconv.Itoa(i)] = s
	}
	return d
}

func abbreviateText(width int, s string) string {
	if width < 4 || len(s) <= width {
		return s
	}
	return s[:width-3] + "..."
}

// splitWords splits FirstName, firstName, first_name and the like into words.
func splitWords(s string) (words []string) {
	begin, runes := 0, []rune(s)
	end := func(at int) {
		if at > begin {
			words = append(words, string(runes[begin:at]))
		}
		begin = at
	}
	for i, r := range runes {
		switch {
		case r == '_' || r == '-' || unicode.IsSpace(r):
			end(i)
			begin = i + 1
		case unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			end(i)
		}
	}
	end(len(runes))
	return words
}

func camelCase(s string) string {
	var b strings.Builder
	for _, word := range splitWords(s) {
		b.WriteString(titleCase(word))
	}
	return b.String()
}

func urlParse(s string) (map[string]any, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.Unwrap(err) // without the URL, which may have a password
	}
	userinfo := ""
	if u.User != nil {
		userinfo = u.User.String()
	}
	return map[string]any{
		"scheme": u.Scheme, "userinfo": userinfo, "host": u.Host, "hostname": u.Hostname(), "path": u.Path,
		"query": u.RawQuery, "opaque": u.Opaque, "fragment": u.Fragment,
	}, nil
}
