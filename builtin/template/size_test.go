package template

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// maxAllocation is more than any function may allocate: the largest value as text, with each byte escaped, several times.
const maxAllocation = 256 << 20

// allocated returns how many bytes a call allocates.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Each template here would need much more memory or time than the process has.
func TestExpensiveFunctionsAreRefused(t *testing.T) {
	long := `{{ $s := sprig_repeat 4000000 "x" }}`
	many := `{{ $l := sprig_until 100000 }}`
	deep := `{{ $v := sprig_until 5000 }}{{ range loop 990 }}{{ $v = sprig_list $v }}{{ end }}`
	quadratic := `{{ $s := sprig_repeat 90000 "x" }}`
	for _, test := range []struct{ text, want string }{
		{`{{ sprig_repeat 1000000000 "xxxx" }}`, "a text of more than"},
		{`{{ sprig_replace "" (sprig_repeat 1000 "x") (sprig_repeat 10000 "x") }}`, "a text of more than"},
		{long + `{{ sprig_cat $s $s $s }}`, "a value of more than"},
		{long + `{{ sprig_b64enc $s }}`, "a text of more than"},
		{long + `{{ split "" $s }}`, "a list of more than 100000 elements"},
		{long + `{{ splitToMap "" ":" $s }}`, "a list of more than 100000 elements"},
		{many + `{{ containsAll $l $l }}`, "is used 100000 times"},
		{deep + `{{ sprig_toPrettyJson $v }}`, "a value of more than"},
		{deep + `{{ toJSONPretty $v }}`, "a value of more than"},
		{deep + `{{ toYAML $v }}`, "more than 4194304 bytes come of it"},
		{`{{ $k := sprig_repeat 7000 "k" }}{{ $d := sprig_dict "x" 1 }}{{ range loop 900 }}{{ $d = sprig_dict $k $d "y" 1 }}{{ end }}{{ toTOML $d }}`, "more than 4194304 bytes come of it"},

		{`{{ sprig_regexMatch (sprig_repeat 5000 "x") "x" }}`, "a regular expression of more than 4096 bytes"},
		{`{{ sprig_regexMatch (sprig_repeat 500 "x{1000}") "x" }}`, "more than 32768 instructions"},
		{long + `{{ regexMatch "(x{1,100}){1,9}y" $s }}`, "the search takes more than"},
		{long + `{{ sprig_regexFindAll "" $s -1 }}`, "matches"},
		{long + `{{ sprig_regexSplit "x" $s -1 }}`, "matches"},
		{long + `{{ sprig_regexReplaceAll "x" $s "" }}`, "matches"},
		{quadratic + `{{ regexReplaceAll "x*y|x" "" $s }}`, "the search takes more than"},
		{`{{ regexReplaceAll "" (sprig_repeat 1000 "y") (sprig_repeat 9000 "x") }}`, "a text of more than"},
		{`{{ regexReplaceAll "x*" (sprig_repeat 100000 "$0") (sprig_repeat 90000 "x") }}`, "a text of more than"},
	} {
		var got string
		var err error
		n := allocated(func() { got, err = evaluateText(t.Context(), test.text) })
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.200s\ngot  %.100q, %.300v\nwant an error with %q", test.text, got, fmt.Sprint(err), test.want)
		}
		if n > maxAllocation {
			t.Errorf("%.200s allocates %d bytes", test.text, n)
		}
	}
}
