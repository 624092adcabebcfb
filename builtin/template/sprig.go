package template

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// sprig are functions of the library of that name. Templates write sprig_ before
// their names.
func sprig() template.FuncMap {
	return template.FuncMap{
		"default":  func(otherwise any, v ...any) any { return firstOf(append(v, otherwise)...) },
		"coalesce": firstOf,
		"empty":    empty,
		"ternary":  func(yes, no any, which bool) any { return map[bool]any{true: yes, false: no}[which] },
		"fail":     func(text string) (string, error) { return "", errors.New(text) },

		"trim":       strings.TrimSpace,
		"trimPrefix": func(prefix, s string) string { return strings.TrimPrefix(s, prefix) },
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"upper":      strings.ToUpper,
		"lower":      strings.ToLower,
		"title":      title,
		"repeat":     repeat,
		"substr":     substr,
		"trunc":      trunc,
		"contains":   func(part, s string) bool { return strings.Contains(s, part) },
		"hasPrefix":  func(prefix, s string) bool { return strings.HasPrefix(s, prefix) },
		"hasSuffix":  func(suffix, s string) bool { return strings.HasSuffix(s, suffix) },
		"quote":      printer(func(v ...any) string { return eachText(v, strconv.Quote) }),
		"squote":     printer(func(v ...any) string { return eachText(v, func(s string) string { return "'" + s + "'" }) }),
		"cat":        printer(func(v ...any) string { return eachText(v, func(s string) string { return s }) }),
		"indent":     func(n int, s string) (string, error) { return indentAll("", n, s) },
		"nindent":    func(n int, s string) (string, error) { return indentAll("\n", n, s) },
		"replace":    replaceAll,

		"regexMatch": func(re, s string) (bool, error) { return regexp.MatchString(re, s) },
		"regexFind": func(re, s string) (string, error) {
			r, err := regexp.Compile(re)
			if err != nil {
				return "", err
			}
			return r.FindString(s), nil
		},
		"regexReplaceAll": func(re, s, to string) (string, error) { return regexReplaceAll(re, to, s) },

		"join":      func(by string, list any) (string, error) { return join(by, list) },
		"splitList": func(by, s string) []string { return strings.Split(s, by) },
		"toStrings": texts,
		"sortAlpha": func(list any) ([]string, error) {
			l, err := texts(list)
			slices.Sort(l)
			return l, err
		},

		"add": func(v ...any) (int64, error) { return fold(v, func(a, b int64) (int64, error) { return a + b, nil }) },
		"sub": func(a, b any) (int64, error) {
			return fold([]any{a, b}, func(a, b int64) (int64, error) { return a - b, nil })
		},
		"mul": func(v ...any) (int64, error) { return fold(v, func(a, b int64) (int64, error) { return a * b, nil }) },
		"div": func(a, b any) (int64, error) {
			return fold([]any{a, b}, func(a, b int64) (int64, error) { return divide(b, a) })
		},
		"mod": func(a, b any) (int64, error) {
			return fold([]any{a, b}, func(a, b int64) (int64, error) { return modulo(b, a) })
		},
		"max": func(v ...any) (int64, error) {
			return fold(v, func(a, b int64) (int64, error) { return max(a, b), nil })
		},
		"min": func(v ...any) (int64, error) {
			return fold(v, func(a, b int64) (int64, error) { return min(a, b), nil })
		},
		"until": until,

		"int":      toInt,
		"int64":    toInt,
		"atoi":     func(s string) (int64, error) { return toInt(s) },
		"toString": printer(func(v ...any) string { return fmt.Sprint(v...) }),

		"now":        time.Now,
		"date":       func(layout string, at any) (string, error) { return formatTime(layout, at) },
		"dateModify": dateModify,

		"b64enc":    encoder(base64.StdEncoding),
		"b64dec":    decoder(base64.StdEncoding),
		"sha256sum": func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) },

		"fromJson":     parseJSON,
		"toJson":       jsonWriter("", true),
		"toPrettyJson": jsonWriter("  ", true),

		"list":   func(v ...any) ([]any, error) { return weighed(v) },
		"first":  func(list any) (any, error) { return at(list, 0) },
		"last":   func(list any) (any, error) { return at(list, -1) },
		"append": func(list, v any) ([]any, error) { return concat(list, []any{v}) },
		"concat": concat,
		"uniq":   uniq,
		"has":    func(want, list any) (bool, error) { return within(list, want) },

		"dict": dict,
		"get": func(d map[string]any, k string) any {
			if v, ok := d[k]; ok {
				return v
			}
			return ""
		},
		"hasKey":         func(d map[string]any, k string) bool { _, ok := d[k]; return ok },
		"keys":           func(dicts ...map[string]any) []string { return slices.Sorted(maps.Keys(mergeAll(dicts, true))) },
		"merge":          func(dicts ...map[string]any) (map[string]any, error) { return weighed(mergeAll(dicts, false)) },
		"mergeOverwrite": func(dicts ...map[string]any) (map[string]any, error) { return weighed(mergeAll(dicts, true)) },

		"base": path.Base,
		"dir":  path.Dir,
		"ext":  path.Ext,
	}
}

func empty(v any) bool {
	truth, _ := template.IsTrue(v)
	return !truth
}

// firstOf returns the first that is not empty, else the last.
func firstOf(v ...any) any {
	for _, one := range v {
		if !empty(one) {
			return one
		}
	}
	if len(v) == 0 {
		return nil
	}
	return v[len(v)-1]
}

func repeat(n int, s string) (string, error) {
	if n < 0 || len(s) > 0 && n > maxSize/len(s) {
		return "", fmt.Errorf("a text of more than %d bytes", maxSize)
	}
	return strings.Repeat(s, n), nil
}

// substr is the part from one place to before another; a negative one is the
// beginning or the end.
func substr(from, to int, s string) string {
	from = min(max(0, from), len(s))
	if to < 0 || to > len(s) {
		to = len(s)
	}
	return s[from:max(from, to)]
}

// trunc keeps that many bytes of the beginning, or if n is negative of the end.
func trunc(n int, s string) string {
	if n < 0 {
		return s[max(0, len(s)+n):]
	}
	return s[:min(n, len(s))]
}

// eachText is the texts of values with blanks between them, without those that
// are not there.
func eachText(v []any, how func(string) string) string {
	var texts []string
	for _, one := range v {
		if one != nil {
			texts = append(texts, how(fmt.Sprint(one)))
		}
	}
	return strings.Join(texts, " ")
}

func indentAll(before string, n int, s string) (string, error) {
	out, err := indent(n, s+"x") // the end of the text is indented too
	return before + strings.TrimSuffix(out, "x"), err
}

// elements returns the elements of any list, in one of its own.
func elements(list any) ([]any, error) {
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

func texts(list any) ([]string, error) {
	l, err := elements(list)
	if err != nil {
		return nil, err
	}
	if _, err := weight(list); err != nil {
		return nil, err
	}
	all := make([]string, len(l))
	for i, v := range l {
		all[i] = fmt.Sprint(v)
	}
	return all, nil
}

// at returns an element, of the end if i is negative, and nil of an empty list.
func at(list any, i int) (any, error) {
	l, err := elements(list)
	if len(l) == 0 {
		return nil, err
	}
	return l[(i+len(l))%len(l)], nil
}

func concat(lists ...any) ([]any, error) {
	var all []any
	for _, list := range lists {
		l, err := elements(list)
		if err != nil {
			return nil, err
		}
		all = append(all, l...)
	}
	return weighed(all)
}

func uniq(list any) ([]any, error) {
	l, err := elements(list)
	seen := map[string]bool{}
	return slices.DeleteFunc(l, func(v any) bool {
		text := fmt.Sprint(v)
		was := seen[text]
		seen[text] = true
		return was
	}), err
}

func dict(pairs ...any) (map[string]any, error) {
	d := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		var v any = ""
		if i+1 < len(pairs) {
			v = pairs[i+1]
		}
		d[fmt.Sprint(pairs[i])] = v
	}
	return weighed(d)
}

func mergeAll(dicts []map[string]any, override bool) map[string]any {
	out := map[string]any{}
	for _, d := range dicts {
		out = merge(out, d, override)
	}
	return out
}

// toInt takes texts and fractions too.
func toInt(v any) (int64, error) {
	if n := reflect.ValueOf(v); n.IsValid() && (n.CanInt() || n.CanUint()) {
		return integer(n), nil
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
	case numeric(n):
		return number(n), nil
	case n.Kind() == reflect.String:
		return strconv.ParseFloat(cmp.Or(n.String(), "0"), 64)
	}
	return 0, fmt.Errorf("%T is no number", v)
}

func fold(v []any, do func(a, b int64) (int64, error)) (result int64, err error) {
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

// until counts from 0 to before n, which may lie below.
func until(n int) ([]int, error) {
	if n > maxSteps || n < -maxSteps {
		return nil, fmt.Errorf("a list of more than %d numbers", maxSteps)
	}
	list := make([]int, max(n, -n))
	for i := range list {
		if list[i] = i; n < 0 {
			list[i] = -i
		}
	}
	return list, nil
}

// timeOf takes a time, or seconds since 1970.
func timeOf(v any) (time.Time, error) {
	if t, ok := v.(time.Time); ok {
		return t, nil
	}
	n, err := toInt(v)
	return time.Unix(n, 0), err
}

func formatTime(layout string, v any) (string, error) {
	t, err := timeOf(v)
	return t.Local().Format(layout), err
}

func dateModify(by string, at any) (time.Time, error) {
	t, err := timeOf(at)
	if err != nil {
		return t, err
	}
	d, err := time.ParseDuration(by)
	return t.Add(d), err
}
