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
		{`{{ sprig_repeat -1 "x" }}`, "negative Repeat count"},
		{`{{ sprig_indent 1000000000 "x" }}`, "a text of more than"},
		{`{{ sprig_nindent 1000 (sprig_repeat 100000 "\n") }}`, "a text of more than"},
		{`{{ sprig_replace "" (sprig_repeat 1000 "x") (sprig_repeat 10000 "x") }}`, "a text of more than"},
		{long + `{{ sprig_wrapWith 1 "xxxxxxxx" $s }}`, "a text of more than"},
		{long + `{{ sprig_wrap 1 $s }}`, "a text of more than"},
		{long + `{{ sprig_cat $s $s $s }}`, "a value of more than"},
		{long + `{{ sprig_quote $s $s $s }}`, "a value of more than"},
		{long + `{{ sprig_b64enc $s }}`, "a text of more than"},
		{long + `{{ sprig_date $s 0 }}`, "a text of more than"},
		{long + `{{ sprig_split "" $s }}`, "a list of more than 100000 elements"},
		{long + `{{ sprig_splitList "" $s }}`, "a list of more than 100000 elements"},
		{long + `{{ sprig_splitn "" 9999999 $s }}`, "a list of more than 100000 elements"},
		{long + `{{ split "" $s }}`, "a list of more than 100000 elements"},
		{long + `{{ splitToMap "" ":" $s }}`, "a list of more than 100000 elements"},
		{`{{ sprig_until 1000000000 }}`, "a list of more than 100000 elements"},
		{`{{ sprig_until -1000000000 }}`, "a list of more than 100000 elements"},
		{`{{ sprig_untilStep 0 1000000000 3 }}`, "a list of more than 100000 elements"},
		{`{{ sprig_untilStep 9223372036854775800 9223372036854775807 100 }}`, "a range with the number 9223372036854775800"},
		{`{{ sprig_untilStep -9223372036854775807 -9223372036854775800 -100 }}`, "a range with the number"},
		{`{{ sprig_seq 1 1 9223372036854775807 }}`, "a range with the number"},
		{`{{ sprig_seq 1000000 }}`, "a list of more than 100000 elements"},
		{`{{ sprig_randAlpha 1000000000 }}`, "1000000000 random bytes"},
		{`{{ sprig_randBytes 1000000000 }}`, "1000000000 random bytes"},
		{`{{ sprig_chunk -1 (sprig_list 1) }}`, "chunks of -1"},
		{`{{ sprig_mulf` + strings.Repeat(" 1.2345678901234567e-300", 5000) + ` }}`, "more than 1000 numbers"},
		{many + `{{ sprig_without $l` + strings.Repeat(" $l", 3000) + ` }}`, "is used 3000 times"},
		{many + `{{ sprig_concat $l $l $l $l $l $l $l $l $l $l $l $l $l }}`, "a value of more than"},
		{many + `{{ containsAll $l $l }}`, "is used 100000 times"},
		{`{{ $d := sprig_dict "a" (sprig_until 100000) }}{{ sprig_merge` + strings.Repeat(" $d", 5000) + ` }}`, "a value of more than"},
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
		{quadratic + `{{ sprig_regexReplaceAllLiteral "x*y|x" $s "" }}`, "the search takes more than"},
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
