package template

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"
	"unicode"
)

// pureFuncs returns the template functions whose result depends only on their
// arguments. In a pipeline, the last argument is the piped value. The map is made
// when the first template needs it, so that other processes of this program do not
// have it in memory.
var pureFuncs = sync.OnceValue(func() template.FuncMap {
	all := template.FuncMap{
		"base64Decode":    newBase64DecodeFunc(base64.StdEncoding),
		"base64Encode":    newBase64EncodeFunc(base64.StdEncoding),
		"base64URLDecode": newBase64DecodeFunc(base64.URLEncoding),
		"base64URLEncode": newBase64EncodeFunc(base64.URLEncoding),

		"sha256Hex":     func(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) },
		"md5sum":        func(s string) string { sum := md5.Sum([]byte(s)); return hex.EncodeToString(sum[:]) },
		"hmacSHA256Hex": hmacSHA256Hex,

		"contains":       func(want, in any) (bool, error) { return containsValue(in, want) },
		"in":             containsValue,
		"containsAll":    func(want, in any) (bool, error) { n, total, err := countContained(want, in); return n == total, err },
		"containsAny":    func(want, in any) (bool, error) { n, _, err := countContained(want, in); return n > 0, err },
		"containsNone":   func(want, in any) (bool, error) { n, _, err := countContained(want, in); return n == 0, err },
		"containsNotAll": func(want, in any) (bool, error) { n, total, err := countContained(want, in); return n < total, err },

		"join":            joinList,
		"split":           func(by, s string) ([]string, error) { return trimAndSplit(s, by) },
		"splitToMap":      splitToMap,
		"indent":          indentLines,
		"replaceAll":      replaceAll,
		"trim":            func(cutset, s string) string { return strings.Trim(s, cutset) },
		"trimPrefix":      func(prefix, s string) string { return strings.TrimPrefix(s, prefix) },
		"trimSuffix":      func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"trimSpace":       strings.TrimSpace,
		"toLower":         strings.ToLower,
		"toUpper":         strings.ToUpper,
		"toTitle":         titleCase,
		"regexMatch":      regexMatch,
		"regexReplaceAll": regexReplaceAll,

		"parseBool":  parseEmptyAsZero(strconv.ParseBool),
		"parseFloat": parseEmptyAsZero(func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }),
		"parseInt":   parseEmptyAsZero(func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }),
		"parseUint":  parseEmptyAsZero(func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }),
		"parseJSON":  parseJSON,
		"parseYAML":  parseYAML,

		"toJSON":                newJSONEncodeFunc("", true),
		"toJSONPretty":          newJSONEncodeFunc(jsonIndent, true),
		"toUnescapedJSON":       newJSONEncodeFunc("", false),
		"toUnescapedJSONPretty": newJSONEncodeFunc(jsonIndent, false),
		"toYAML":                toYAML,
		"toTOML":                toTOML,

		"explode":    nestMapByPath,
		"explodeMap": nestMapByPath,
		"mergeMap": func(to, from map[string]any) (map[string]any, error) {
			return checkValueSizeLimit(mergeMaps(to, from, false))
		},
		"mergeMapWithOverride": func(to, from map[string]any) (map[string]any, error) {
			return checkValueSizeLimit(mergeMaps(to, from, true))
		},

		"add":      newArithmeticFunc("add", func(b, a int64) (int64, error) { return a + b, nil }, func(b, a float64) float64 { return a + b }),
		"subtract": newArithmeticFunc("subtract", func(b, a int64) (int64, error) { return a - b, nil }, func(b, a float64) float64 { return a - b }),
		"multiply": newArithmeticFunc("multiply", func(b, a int64) (int64, error) { return a * b, nil }, func(b, a float64) float64 { return a * b }),
		"divide":   newArithmeticFunc("divide", divideInts, func(b, a float64) float64 { return a / b }),
		"modulo":   newArithmeticFunc("modulo", moduloInts, nil),
		"minimum":  newArithmeticFunc("minimum", func(b, a int64) (int64, error) { return min(a, b), nil }, func(b, a float64) float64 { return min(a, b) }),
		"maximum":  newArithmeticFunc("maximum", func(b, a int64) (int64, error) { return max(a, b), nil }, func(b, a float64) float64 { return max(a, b) }),

		"byTag":  groupInstancesByTag,
		"byPort": groupInstancesByPort,

		"spew_dump":    dumpValue,
		"spew_sdump":   dumpValue,
		"spew_printf":  limitedPrintf,
		"spew_sprintf": limitedPrintf,

		// These functions replace builtin functions of text/template: they limit the
		// size of their output.
		"print":    newLimitedPrintFunc(fmt.Sprint),
		"printf":   limitedPrintf,
		"println":  newLimitedPrintFunc(fmt.Sprintln),
		"html":     newLimitedPrintFunc(template.HTMLEscaper),
		"js":       newLimitedPrintFunc(template.JSEscaper),
		"urlquery": newLimitedPrintFunc(template.URLQueryEscaper),
	}
	for name, f := range pureSprigFuncs() {
		all["sprig_"+name] = f
	}
	return wrapFuncsToAcceptVarItems(all)
})

const disabledReason = "the function is disabled"

// unsupportedFuncs maps the names of unsupported template functions to the
// reasons.
var unsupportedFuncs = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for why, names := range map[string][]string{
		"there is no Consul here: nomadVar and nomadService read what this node has": {
			"byKey", "byMeta", "caLeaf", "caRoots", "connect", "datacenters", "exportedServices", "importedServices", "key", "keyExists", "keyExistsGet",
			"keyOrDefault", "ls", "node", "nodes", "partitions", "peerings", "safeLs", "safeTree", "tree",
		},
		"there is no Vault here: nomadVar reads the variables of this node": {"pkiCert", "secret", "secrets"},
		disabledReason: {"executeTemplate", "plugin", "writeToFile"},

		"no value changes here: use scratch.MapSet, or the result of sprig_dict or sprig_merge": {"sprig_set", "sprig_unset"},
		"use env, which reads what the task has":                                                {"sprig_env", "sprig_expandenv"},
		"templates have no network":                                                             {"sprig_getHostByName"},
		"a key, a certificate or a password hash would be another one after each restart of the agent: use a variable": {
			"sprig_bcrypt", "sprig_buildCustomCert", "sprig_encryptAES", "sprig_genCA", "sprig_genCAWithKey", "sprig_genPrivateKey",
			"sprig_genSelfSignedCert", "sprig_genSelfSignedCertWithKey", "sprig_genSignedCert", "sprig_genSignedCertWithKey", "sprig_htpasswd",
		},
		"it takes too much time and memory: use a variable": {"sprig_derivePassword"},
	} {
		for _, name := range names {
			all[name] = why
		}
	}
	return all
})

func dumpValue(v any) (string, error) { return limitedPrintf("%#v\n", v) }

func newBase64EncodeFunc(e *base64.Encoding) func(string) (string, error) {
	return func(s string) (string, error) { return checkTextLengthLimit(e.EncodeToString([]byte(s))) }
}

func newBase64DecodeFunc(e *base64.Encoding) func(string) (string, error) {
	return func(s string) (string, error) {
		text, err := e.DecodeString(s)
		return string(text), err
	}
}

func hmacSHA256Hex(message, key string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(message))
	return hex.EncodeToString(mac.Sum(nil))
}

// parseEmptyAsZero wraps a parse function. For an empty string, which missing data result
// in, the wrapped function returns the zero value.
func parseEmptyAsZero[T any](parse func(string) (T, error)) func(string) (T, error) {
	return func(s string) (zero T, err error) {
		if s == "" {
			return zero, nil
		}
		return parse(s)
	}
}

// containsValue reports whether a list, the keys of a map, or a string contains a
// value. Values are equal if they have the same text: numbers of different types can be equal.
func containsValue(in, want any) (bool, error) {
	v := reflect.ValueOf(in)
	text := fmt.Sprint(want)
	equal := func(v any) bool { return reflect.DeepEqual(v, want) || fmt.Sprint(v) == text }
	switch v.Kind() {
	case reflect.Invalid:
		return false, nil
	case reflect.String:
		return strings.Contains(v.String(), text), nil
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if equal(v.Index(i).Interface()) {
				return true, nil
			}
		}
		return false, nil
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if equal(k.Interface()) {
				return true, nil
			}
		}
		return false, nil
	}
	return false, fmt.Errorf("%T has no elements", in)
}

// countContained returns how many elements of wantedList are contained in the value in,
// and the length of wantedList.
func countContained(wantedList, in any) (foundCount, total int, err error) {
	list := reflect.ValueOf(wantedList)
	if k := list.Kind(); k != reflect.Slice && k != reflect.Array {
		return 0, 0, fmt.Errorf("%T is no list", wantedList)
	}
	if err := checkRepeatedValueSizeLimit(list.Len(), in); err != nil {
		return 0, 0, err
	}
	for i := range list.Len() {
		found, err := containsValue(in, list.Index(i).Interface())
		if err != nil {
			return 0, 0, err
		}
		if found {
			foundCount++
		}
	}
	return foundCount, list.Len(), nil
}

func joinList(separator string, list any) (string, error) {
	v := reflect.ValueOf(list)
	switch v.Kind() {
	case reflect.Invalid:
		return "", nil
	case reflect.Slice, reflect.Array:
	default:
		return "", fmt.Errorf("%T is no list", list)
	}
	if _, err := valueSize(list); err != nil {
		return "", err
	}
	var b strings.Builder
	for i := range v.Len() {
		if i > 0 {
			b.WriteString(separator)
		}
		fmt.Fprint(&b, v.Index(i).Interface())
		if b.Len() > maxContentSize {
			return checkTextLengthLimit(b.String())
		}
	}
	return b.String(), nil
}

func trimAndSplit(s, separator string) ([]string, error) {
	if s = strings.TrimSpace(s); s == "" {
		return []string{}, nil
	}
	if err := checkSplitPartCountLimit(s, separator); err != nil {
		return nil, err
	}
	return strings.Split(s, separator), nil
}

func splitToMap(pairSeparator, valueSeparator, s string) (map[string]string, error) {
	list, err := trimAndSplit(s, pairSeparator)
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, pair := range list {
		k, v, _ := strings.Cut(pair, valueSeparator)
		if k = strings.TrimSpace(k); k == "" {
			return nil, fmt.Errorf("a pair without a key")
		}
		m[k] = strings.TrimSpace(v)
	}
	return m, nil
}

func indentLines(spaces int, s string) (string, error) {
	if spaces < 0 {
		return "", fmt.Errorf("an indentation of %d", spaces)
	}
	if err := checkIndentedTextLengthLimit(spaces, s); err != nil {
		return "", err
	}
	pad := strings.Repeat(" ", spaces)
	out := pad + strings.ReplaceAll(s, "\n", "\n"+pad)
	if strings.HasSuffix(s, "\n") {
		out = out[:len(out)-spaces]
	}
	return out, nil
}

func replaceAll(from, to, s string) (string, error) {
	if err := checkReplacedTextLengthLimit(from, to, s); err != nil {
		return "", err
	}
	return strings.ReplaceAll(s, from, to), nil
}

func titleCase(s string) string {
	begin := true
	return strings.Map(func(r rune) rune {
		was := begin
		if begin = unicode.IsSpace(r); was {
			return unicode.ToTitle(r)
		}
		return r
	}, s)
}

func parseJSON(s string) (any, error) {
	if s == "" {
		return map[string]any{}, nil
	}
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		return nil, err
	}
	return checkValueSizeLimit(v)
}

// jsonIndent is the indentation of each level of JSON documents.
const jsonIndent = "  "

func newJSONEncodeFunc(indent string, escapeHTML bool) func(any) (string, error) {
	return func(v any) (string, error) {
		if err := checkIndentedSizeLimit(v, indent); err != nil {
			return "", err
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetIndent("", indent)
		e.SetEscapeHTML(escapeHTML)
		if err := e.Encode(v); err != nil {
			return "", err
		}
		return checkTextLengthLimit(strings.TrimSuffix(b.String(), "\n"))
	}
}

// nestMapByPath converts a map whose keys are slash-separated paths into nested
// maps.
func nestMapByPath(flat map[string]any) (map[string]any, error) {
	tree := map[string]any{}
	for _, path := range slices.Sorted(maps.Keys(flat)) {
		at := tree
		parts := strings.Split(strings.Trim(path, "/"), "/")
		if len(parts) > maxNestingDepth {
			return nil, fmt.Errorf("a path with more than %d parts", maxNestingDepth)
		}
		for _, part := range parts[:len(parts)-1] {
			next, ok := at[part].(map[string]any)
			if at[part] != nil && !ok {
				return nil, fmt.Errorf("%q is a value and a branch", part)
			}
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
		last := parts[len(parts)-1]
		if _, taken := at[last].(map[string]any); taken {
			return nil, fmt.Errorf("%q is a value and a branch", last)
		}
		at[last] = flat[path]
	}
	return checkValueSizeLimit(tree)
}

// mergeMaps returns a copy of the map to, with the additional entries of the map from, also
// in nested maps. If override is true, entries of from replace entries of to.
func mergeMaps(to, from map[string]any, override bool) map[string]any {
	out := make(map[string]any, len(to)+len(from))
	maps.Copy(out, to)
	for k, v := range from {
		a, aok := out[k].(map[string]any)
		b, bok := v.(map[string]any)
		switch _, taken := out[k]; {
		case aok && bok:
			out[k] = mergeMaps(a, b, override)
		case !taken || override:
			out[k] = v
		}
	}
	return out
}

// newArithmeticFunc returns a function for numbers of any type. Its result is a
// floating-point number if an argument is one.
func newArithmeticFunc(name string, intOp func(b, a int64) (int64, error), floatOp func(b, a float64) float64) func(b, a any) (any, error) {
	return func(b, a any) (any, error) { return applyArithmetic(name, intOp, floatOp, b, a) }
}

func applyArithmetic(name string, intOp func(b, a int64) (int64, error), floatOp func(b, a float64) float64, b, a any) (any, error) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	switch {
	case !isNumeric(x) || !isNumeric(y):
		return nil, fmt.Errorf("%s wants numbers, not %T and %T", name, a, b)
	case !x.CanFloat() && !y.CanFloat():
		return intOp(toInt64(y), toInt64(x))
	case floatOp == nil:
		return nil, fmt.Errorf("%s wants whole numbers", name)
	}
	return floatOp(toFloat64(y), toFloat64(x)), nil
}

func isNumeric(v reflect.Value) bool {
	return v.IsValid() && (v.CanInt() || v.CanUint() || v.CanFloat())
}

func toInt64(v reflect.Value) int64 {
	if v.CanUint() {
		return int64(v.Uint())
	}
	return v.Int()
}

func toFloat64(v reflect.Value) float64 {
	if v.CanFloat() {
		return v.Float()
	}
	return float64(toInt64(v))
}

func divideInts(divisor, dividend int64) (int64, error) {
	if divisor == 0 {
		return 0, fmt.Errorf("a division by zero")
	}
	return dividend / divisor, nil
}

func moduloInts(divisor, dividend int64) (int64, error) {
	if divisor == 0 {
		return 0, fmt.Errorf("a division by zero")
	}
	return dividend % divisor, nil
}

// currentTimeAndMarkUsed returns the current time, which is the same for all calls in a
// rendering pass, and records that the template uses the time.
func (p *renderPass) currentTimeAndMarkUsed() time.Time {
	p.usesTime = true
	return p.Now
}

func (p *renderPass) timestamp(format ...string) (string, error) {
	now := p.currentTimeAndMarkUsed().UTC()
	switch {
	case len(format) == 0:
		return now.Format(time.RFC3339), nil
	case len(format) > 1:
		return "", fmt.Errorf("timestamp takes one format")
	case format[0] == "unix":
		return strconv.FormatInt(now.Unix(), 10), nil
	}
	return now.Format(format[0]), nil
}

func groupInstancesByTag(list []serviceInstance) map[string][]serviceInstance {
	m := map[string][]serviceInstance{}
	for _, s := range list {
		for _, tag := range s.Tags {
			m[tag] = append(m[tag], s)
		}
	}
	return m
}

func groupInstancesByPort(list []serviceInstance) map[int][]serviceInstance {
	m := map[int][]serviceInstance{}
	for _, s := range list {
		m[s.Port] = append(m[s.Port], s)
	}
	return m
}
