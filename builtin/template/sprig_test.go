package template

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/sprig/v3"
)

// The examples of sprig's documentation have the documented results. Where the documentation has no example, or an example
// without a result, the result follows from its text.
func TestSprigDocumentation(t *testing.T) {
	const (
		myList = `{{ $myList := sprig_list 1 2 3 4 5 }}`
		myDict = `{{ $myDict := sprig_dict "name1" "value1" "name2" "value2" "name3" "value 3" }}`
		nested = `{{ $dict := sprig_dict "user" (sprig_dict "role" (sprig_dict "humanName" "curator")) }}`
	)
	seen := map[string]bool{}
	for _, test := range []struct{ text, want string }{
		// Strings
		{`{{ sprig_trim "   hello    " }}`, "hello"},
		{`{{ sprig_trimAll "$" "$5.00" }}{{ sprig_trimall "$" "$5.00" }}`, "5.005.00"},
		{`{{ sprig_trimSuffix "-" "hello-" }}`, "hello"},
		{`{{ sprig_trimPrefix "-" "-hello" }}`, "hello"},
		{`{{ sprig_upper "hello" }}`, "HELLO"},
		{`{{ sprig_lower "HELLO" }}`, "hello"},
		{`{{ sprig_title "hello world" }}`, "Hello World"},
		{`{{ sprig_untitle "Hello World" }}`, "hello world"},
		{`{{ sprig_repeat 3 "hello" }}`, "hellohellohello"},
		{`{{ sprig_substr 0 5 "hello world" }}`, "hello"},
		{`{{ sprig_nospace "hello w o r l d" }}`, "helloworld"},
		{`{{ sprig_trunc 5 "hello world" }}`, "hello"},
		{`{{ sprig_trunc -5 "hello world" }}`, "world"},
		{`{{ sprig_abbrev 5 "hello world" }}`, "he..."},
		{`{{ sprig_abbrevboth 5 10 "1234 5678 9123" }}`, "...5678..."},
		{`{{ sprig_initials "First Try" }}`, "FT"},
		{`{{ sprig_randNumeric 3 | regexMatch "^[0-9]{3}$" }}`, "true"},
		{`{{ sprig_randAlphaNum 3 | regexMatch "^[0-9a-zA-Z]{3}$" }}`, "true"},
		{`{{ sprig_randAlpha 3 | regexMatch "^[a-zA-Z]{3}$" }}`, "true"},
		{`{{ sprig_randAscii 3 | regexMatch "^[ -~]{3}$" }}`, "true"},
		{`{{ sprig_wrap 5 "Hello World" }}`, "Hello\nWorld"},
		{`{{ sprig_wrapWith 5 "\t" "Hello World" }}`, "Hello\tWorld"},
		{`{{ sprig_contains "cat" "catch" }}`, "true"},
		{`{{ sprig_hasPrefix "cat" "catch" }}{{ sprig_hasSuffix "cat" "catch" }}`, "truefalse"},
		{`{{ sprig_quote "a" }}{{ sprig_squote "a" }}`, `"a"'a'`},
		{`{{ sprig_cat "hello" "beautiful" "world" }}`, "hello beautiful world"},
		{`{{ sprig_indent 4 "a\nb" }}`, "    a\n    b"},
		{`{{ sprig_nindent 4 "a\nb" }}`, "\n    a\n    b"},
		{`{{ "I Am Henry VIII" | sprig_replace " " "-" }}`, "I-Am-Henry-VIII"},
		{`{{ len "a" | sprig_plural "one anchovy" "many anchovies" }}`, "one anchovy"},
		{`{{ sprig_snakecase "FirstName" }}`, "first_name"},
		{`{{ sprig_camelcase "http_server" }}`, "HttpServer"},
		{`{{ sprig_kebabcase "FirstName" }}`, "first-name"},
		{`{{ sprig_swapcase "This Is A.Test" }}`, "tHIS iS a.tEST"},
		{`{{ sprig_shuffle "hello" | regexMatch "^[helo]{5}$" }}`, "true"},
		{`{{ sprig_regexMatch "^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\\.[A-Za-z]{2,}$" "test@acme.com" }}`, "true"},
		{`{{ sprig_mustRegexMatch "^a" "test@acme.com" }}`, "false"},
		{`{{ sprig_regexFindAll "[2,4,6,8]" "123456789" -1 }}{{ sprig_mustRegexFindAll "[2,4,6,8]" "123456789" 1 }}`, "[2 4 6 8][2]"},
		{`{{ sprig_regexFind "[a-zA-Z][1-9]" "abcd1234" }}{{ sprig_mustRegexFind "[a-zA-Z][1-9]" "abcd1234" }}`, "d1d1"},
		{`{{ sprig_regexReplaceAll "a(x*)b" "-ab-axxb-" "${1}W" }}{{ sprig_mustRegexReplaceAll "a(x*)b" "-ab-axxb-" "${1}W" }}`, "-W-xxW--W-xxW-"},
		{`{{ sprig_regexReplaceAllLiteral "a(x*)b" "-ab-axxb-" "${1}" }}{{ sprig_mustRegexReplaceAllLiteral "b" "ab" "" }}`, "-${1}-${1}-a"},
		{`{{ sprig_regexSplit "z+" "pizza" -1 }}{{ sprig_mustRegexSplit "z+" "pizza" 1 }}`, "[pi a][pizza]"},
		{`{{ sprig_regexQuoteMeta "1.2.3" }}`, `1\.2\.3`},
		{`{{ sprig_hello }}`, "Hello!"},

		// Lists of strings
		{`{{ sprig_list "hello" "world" | sprig_join "_" }} {{ sprig_list 1 2 3 | sprig_join "+" }}`, "hello_world 1+2+3"},
		{`{{ sprig_splitList "$" "foo$bar$baz" }}`, "[foo bar baz]"},
		{`{{ $a := sprig_split "$" "foo$bar$baz" }}{{ $a }} {{ $a._0 }}`, "map[_0:foo _1:bar _2:baz] foo"},
		{`{{ $a := sprig_splitn "$" 2 "foo$bar$baz" }}{{ $a }} {{ $a._0 }}`, "map[_0:foo _1:bar$baz] foo"},
		{`{{ $l := sprig_splitList "," "b,a" }}{{ sprig_sortAlpha $l }} {{ $l }}`, "[a b] [b a]"},

		// Numbers
		{`{{ sprig_add 1 2 3 }} {{ sprig_add1 1 }} {{ sprig_sub 3 1 }} {{ sprig_div 7 2 }} {{ sprig_mod 7 2 }} {{ sprig_mul 1 2 3 }}`, "6 2 2 3 1 6"},
		{`{{ sprig_max 1 2 3 }} {{ sprig_biggest 1 2 3 }} {{ sprig_min 1 2 3 }}`, "3 3 1"},
		{`{{ sprig_floor 123.9999 }} {{ sprig_ceil 123.001 }} {{ sprig_round 123.555555 3 }}`, "123 124 123.556"},
		{`{{ $n := sprig_randInt 12 30 }}{{ and (ge $n 12) (lt $n 30) }}`, "true"},
		{`{{ sprig_addf 1.5 2 2 }} {{ sprig_add1f 1.5 }} {{ sprig_subf 7.5 2 3 }} {{ sprig_divf 10 2 4 }} {{ sprig_mulf 1.5 2 2 }}`, "5.5 2.5 2.5 1.25 6"},
		{`{{ sprig_maxf 1 2.5 3 }} {{ sprig_minf 1.5 2 3 }}`, "3 1.5"},
		{`{{ sprig_until 5 }} {{ sprig_untilStep 3 6 2 }}`, "[0 1 2 3 4] [3 5]"},
		{`{{ sprig_seq 5 }}|{{ sprig_seq -3 }}|{{ sprig_seq 0 2 }}|{{ sprig_seq 2 -2 }}|{{ sprig_seq 0 2 10 }}|{{ sprig_seq 0 -2 -5 }}`, "1 2 3 4 5|1 0 -1 -2 -3|0 1 2|2 1 0 -1 -2|0 2 4 6 8 10|0 -2 -4"},

		// Dates. The current time is that of evaluateText.
		{`{{ sprig_dateInZone "2006-01-02" (sprig_now) "UTC" }} {{ sprig_date_in_zone "2006" sprig_now "UTC" }}`, "2014-05-13 2014"},
		{`{{ sprig_now | sprig_date "2006" }} {{ sprig_htmlDate 1400000000 | len }} {{ sprig_htmlDateInZone (sprig_now) "UTC" }}`, "2014 10 2014-05-13"},
		{`{{ sprig_ago (sprig_dateModify "-2h34m7s" sprig_now) }}`, "2h34m7s"},
		{`{{ sprig_duration "95" }} {{ sprig_durationRound "2h10m5s" }} {{ sprig_durationRound "2400h10m5s" }} {{ sprig_durationRound (sprig_dateModify "-2h" sprig_now) }}`, "1m35s 2h 3mo 2h"},
		{`{{ sprig_now | sprig_unixEpoch }} {{ sprig_now | sprig_date_modify "-1.5h" | sprig_unixEpoch }} {{ sprig_now | sprig_dateModify "wrong" | sprig_unixEpoch }}`, "1400000000 1399994600 1400000000"},
		{`{{ sprig_now | sprig_mustDateModify "1h" | sprig_unixEpoch }} {{ sprig_now | sprig_must_date_modify "1h" | sprig_unixEpoch }}`, "1400003600 1400003600"},
		{`{{ sprig_now | sprig_mustDateModify "wrong" }}`, "error"},
		{`{{ sprig_toDate "2006-01-02" "2017-12-31" | sprig_date "02/01/2006" }} {{ (sprig_toDate "2006" "x").IsZero }} {{ sprig_mustToDate "2006" "2017" | sprig_date "2006" }}`, "31/12/2017 true 2017"},
		{`{{ sprig_mustToDate "2006" "x" }}`, "error"},

		// Defaults
		{`{{ sprig_default "foo" "" }} {{ sprig_default "foo" "bar" }} {{ sprig_default "foo" 0 }} {{ sprig_default "foo" (sprig_dict) }}`, "foo bar foo foo"},
		{`{{ sprig_empty "" }} {{ sprig_empty 1 }} {{ sprig_coalesce 0 1 2 }} {{ sprig_coalesce "" nil "Matt" }} {{ sprig_all 0 1 2 }} {{ sprig_any 0 1 2 }}`, "true false 1 Matt false true"},
		{`{{ (sprig_fromJson "{\"foo\": 55}").foo }} {{ (sprig_mustFromJson "{\"foo\": 55}").foo }}`, "55 55"},
		{`{{ sprig_mustFromJson "{" }}`, "error"},
		{`{{ sprig_toJson (sprig_list "<") }} {{ sprig_mustToJson 1 }} {{ sprig_toPrettyJson (sprig_list 1) }} {{ sprig_mustToPrettyJson 1 }} {{ sprig_toRawJson "<" }} {{ sprig_mustToRawJson "<" }}`, "[\"\\u003c\"] 1 [\n  1\n] 1 \"<\" \"<\""},
		{`{{ sprig_ternary "foo" "bar" true }} {{ false | sprig_ternary "foo" "bar" }}`, "foo bar"},

		// Encodings and conversions
		{`{{ sprig_b64enc "hi" }} {{ sprig_b64dec "aGk=" }} {{ sprig_b32enc "hi" }} {{ sprig_b32dec "NBUQ====" }}`, "aGk= hi NBUQ==== hi"},
		{`{{ sprig_atoi "12" }} {{ sprig_float64 "1.5" }} {{ sprig_int 1.9 }} {{ sprig_int64 "3" }} {{ "0777" | sprig_toDecimal }} {{ sprig_toString 1 }}`, "12 1.5 1 3 511 1"},
		{`{{ sprig_list 1 2 3 | sprig_toStrings | toJSON }}`, `["1","2","3"]`},

		// Lists
		{myList + `{{ sprig_first $myList }} {{ sprig_mustFirst $myList }} {{ sprig_rest $myList }} {{ sprig_mustRest $myList }} {{ sprig_last $myList }} {{ sprig_mustLast $myList }} {{ sprig_initial $myList }} {{ sprig_mustInitial $myList }}`,
			"1 1 [2 3 4 5] [2 3 4 5] 5 5 [1 2 3 4] [1 2 3 4]"},
		{myList + `{{ sprig_append $myList 6 }} {{ sprig_mustAppend $myList 6 }} {{ sprig_push $myList 6 }} {{ sprig_mustPush $myList 6 }} {{ $myList }}`, "[1 2 3 4 5 6] [1 2 3 4 5 6] [1 2 3 4 5 6] [1 2 3 4 5 6] [1 2 3 4 5]"},
		{myList + `{{ sprig_prepend $myList 0 }} {{ sprig_mustPrepend $myList 0 }} {{ sprig_concat $myList (sprig_list 6 7) (sprig_list 8) }}`, "[0 1 2 3 4 5] [0 1 2 3 4 5] [1 2 3 4 5 6 7 8]"},
		{myList + `{{ sprig_reverse $myList }} {{ sprig_mustReverse $myList }} {{ sprig_list 1 1 1 2 | sprig_uniq }} {{ sprig_mustUniq $myList }}`, "[5 4 3 2 1] [5 4 3 2 1] [1 2] [1 2 3 4 5]"},
		{myList + `{{ sprig_without $myList 3 }} {{ sprig_without $myList 1 3 5 }} {{ sprig_mustWithout $myList 1 }}`, "[1 2 4 5] [2 4] [2 3 4 5]"},
		{myList + `{{ sprig_has 4 $myList }} {{ sprig_has "hello" $myList }} {{ sprig_mustHas 4 $myList }}`, "true false true"},
		{`{{ sprig_list 1 "a" "foo" "" | sprig_compact }} {{ sprig_mustCompact (sprig_list "") }}`, "[1 a foo] []"},
		{myList + `{{ sprig_slice $myList }} {{ sprig_slice $myList 3 }} {{ sprig_slice $myList 1 3 }} {{ sprig_mustSlice $myList 0 3 }}`, "[1 2 3 4 5] [4 5] [2 3] [1 2 3]"},
		{`{{ sprig_chunk 3 (sprig_list 1 2 3 4 5 6 7 8) }} {{ sprig_mustChunk 2 (sprig_list 1) }} {{ sprig_tuple 1 2 }}`, "[[1 2 3] [4 5 6] [7 8]] [[1]] [1 2]"},

		// Dictionaries
		{myDict + `{{ sprig_get $myDict "name1" }} {{ sprig_get $myDict "x" | printf "%q" }} {{ sprig_hasKey $myDict "name1" }} {{ sprig_hasKey $myDict "x" }}`, `value1 "" true false`},
		{myDict + `{{ sprig_pluck "name1" $myDict (sprig_dict "name1" "otherValue1") }} {{ sprig_pick $myDict "name1" "name2" }} {{ sprig_omit $myDict "name1" "name3" }}`, "[value1 otherValue1] map[name1:value1 name2:value2] map[name2:value2]"},
		{myDict + `{{ sprig_keys $myDict | sprig_sortAlpha }} {{ sprig_keys $myDict $myDict | sprig_uniq | sprig_sortAlpha }} {{ sprig_values $myDict | toJSON }}`, `[name1 name2 name3] [name1 name2 name3] ["value1","value2","value 3"]`},
		{nested + `{{ sprig_dig "user" "role" "humanName" "guest" $dict }} {{ sprig_dig "x" "role" "humanName" "guest" $dict }}`, "curator guest"},
		{`{{ sprig_merge (sprig_dict "a" 1) (sprig_dict "a" 2 "b" 3) }} {{ sprig_mustMerge (sprig_dict "a" 1) (sprig_dict "b" 3) }}`, "map[a:1 b:3] map[a:1 b:3]"},
		{`{{ $dst := sprig_dict "default" "default" "overwrite" "me" "key" true }}{{ $src := sprig_dict "overwrite" "overwritten" "key" false }}{{ sprig_mergeOverwrite $dst $src }} {{ sprig_mustMergeOverwrite (sprig_dict) $src }}`,
			"map[default:default key:false overwrite:overwritten] map[key:false overwrite:overwritten]"},
		{`{{ sprig_dict "a" 1 "b" 2 | sprig_deepCopy }} {{ sprig_mustDeepCopy 1 }}`, "map[a:1 b:2] 1"},

		// Paths
		{`{{ sprig_base "foo/bar/baz" }} {{ sprig_dir "foo/bar/baz" }} {{ sprig_clean "foo/bar/../baz" }} {{ sprig_ext "foo.bar" }} {{ sprig_isAbs "/a" }}`, "baz foo/bar foo/baz .bar true"},
		{`{{ sprig_osBase "/foo/bar/baz" }} {{ sprig_osDir "/foo/bar/baz" }} {{ sprig_osClean "/foo/bar/../baz" }} {{ sprig_osExt "/foo.bar" }} {{ sprig_osIsAbs "a" }}`, "baz /foo/bar /foo/baz .bar false"},

		// Types, versions, URLs
		{`{{ sprig_kindOf "hello" }} {{ sprig_kindIs "int" 123 }} {{ sprig_typeOf 1.5 }} {{ sprig_typeIs "string" "" }} {{ sprig_typeIsLike "semver.Version" (sprig_semver "1.2.3") }} {{ sprig_deepEqual (sprig_list 1 2 3) (sprig_list 1 2 3) }}`, "string true float64 true true true"},
		{`{{ $v := sprig_semver "1.2.3-alpha.1+123" }}{{ $v.Major }} {{ $v.Minor }} {{ $v.Patch }} {{ $v.Prerelease }} {{ $v.Metadata }} {{ $v.Original }} {{ sprig_semver "1.4.3" | (sprig_semver "1.2.3").Compare }}`, "1 2 3 alpha.1 123 1.2.3-alpha.1+123 -1"},
		{`{{ sprig_semverCompare "1.2.3" "1.2.3" }} {{ sprig_semverCompare "^1.2.0" "1.2.3" }} {{ sprig_semverCompare ">= 1.2 < 3.0.0 || >= 4.2.3" "3.1.0" }} {{ sprig_semverCompare "~1.2.x" "1.3.0" }}`, "true true false false"},
		{`{{ sprig_urlParse "http://admin:secret@server.com:8080/api?list=false#anchor" }}`, "map[fragment:anchor host:server.com:8080 hostname:server.com opaque: path:/api query:list=false scheme:http userinfo:admin:secret]"},
		{`{{ sprig_urlJoin (sprig_dict "fragment" "fragment" "host" "host:80" "path" "/path" "query" "query" "scheme" "http") }}`, "http://host:80/path?query#fragment"},

		// Checksums and random numbers
		{`{{ sprig_sha1sum "Hello world!" }}`, "d3486ae9136e7856bc42212385ea797094475802"},
		{`{{ sprig_sha256sum "Hello world!" }}`, "c0535e4be2b79ffd93291305436bf889314e4a3faec05ecffcbb7df31ad9e51a"},
		{`{{ sprig_sha512sum "Hello world!" | sprig_trunc 16 }} {{ sprig_adler32sum "Hello world!" }}`, "f6cde2a0f819314c 487130206"},
		{`{{ "30tEfhuJSVRhpG97XCuWgz2okj7L8vQ1s6V9zVUPeDQ=" | sprig_decryptAES "secretkey" }}`, "plaintext"},
		{`{{ sprig_randBytes 24 | len }} {{ sprig_uuidv4 | len }}`, "32 36"},
		{`{{ sprig_fail "Please accept the end user license agreement" }}`, "error"},
	} {
		for name := range sprig.TxtFuncMap() {
			seen[name] = seen[name] || slices.Contains(strings.FieldsFunc(test.text, func(r rune) bool { return strings.ContainsRune(" (){}", r) }), "sprig_"+name)
		}
		got, err := evaluateText(t.Context(), test.text)
		if err != nil {
			got = "error"
		}
		if got != test.want {
			t.Errorf("%s\ngot  %q, %v\nwant %q", test.text, got, err, test.want)
		}
	}
	for name := range sprig.TxtFuncMap() {
		if !seen[name] && unsupportedFuncs()["sprig_"+name] == "" {
			t.Errorf("no example of sprig_%s", name)
		}
	}
}

// sprigLimits lists each function of sprig with what limits the size of its result, and its time.
var sprigLimits = []struct{ limit, names string }{
	{"the result is at most as large as the arguments, or at most four times as large and limited after the call", `
		abbrev abbrevboth all any base camelcase clean coalesce compact contains deepCopy default dict dig dir empty ext fail first
		fromJson get hasKey hasPrefix hasSuffix initial initials isAbs kebabcase kindIs kindOf last list lower mustCompact
		mustDeepCopy mustFirst mustFromJson mustInitial mustLast mustRest mustReverse mustSlice nospace omit osBase osClean osDir
		osExt osIsAbs pick pluck plural rest reverse slice snakecase substr swapcase ternary trim trimAll trimPrefix trimSuffix
		trimall trunc tuple typeIs typeIsLike typeOf untitle upper regexQuoteMeta values title b32dec b32enc b64dec b64enc
		decryptAES append mustAppend prepend mustPrepend push mustPush deepEqual semver semverCompare urlParse`},
	{"the result has a constant size", `
		add add1 adler32sum ago atoi biggest ceil dateModify date_modify div duration durationRound float64 floor hello int int64 max
		min mod mul mustDateModify must_date_modify mustToDate now round sha1sum sha256sum sha512sum sub toDate unixEpoch uuidv4
		randInt`},
	{"the size of the arguments is limited before the call", `
		cat quote squote toDecimal toJson toPrettyJson toRawJson toString toStrings mustToJson mustToPrettyJson mustToRawJson join
		concat uniq mustUniq merge mustMerge mergeOverwrite mustMergeOverwrite sortAlpha keys`},
	{"the size of the result is calculated before the call", `
		repeat indent nindent replace wrap wrapWith date dateInZone date_in_zone htmlDate htmlDateInZone`},
	{"the number of elements is calculated before the call", "split splitList splitn until untilStep seq chunk mustChunk"},
	{"the argument is limited before the call", "randAlpha randAlphaNum randAscii randBytes randNumeric"},
	{"the text is one of the arguments", "shuffle urlJoin"},
	{"the number of decimal numbers is limited", "add1f addf divf maxf minf mulf subf"},
	{"the number of comparisons is limited", "without mustWithout has mustHas"},
	{"the expression, the steps of the search, the matches and the result are limited", `
		regexMatch mustRegexMatch regexFind mustRegexFind regexFindAll mustRegexFindAll regexSplit mustRegexSplit regexReplaceAll
		mustRegexReplaceAll regexReplaceAllLiteral mustRegexReplaceAllLiteral`},
	{"the function always fails", `
		env expandenv getHostByName set unset bcrypt htpasswd derivePassword genPrivateKey buildCustomCert genCA genCAWithKey
		genSelfSignedCert genSelfSignedCertWithKey genSignedCert genSignedCertWithKey encryptAES`},
}

// A new version of sprig with a function that is not in the table fails this test.
func TestSprigLimitsAreComplete(t *testing.T) {
	listed := map[string]bool{}
	functions := pureFuncs()
	for _, l := range sprigLimits {
		for _, name := range strings.Fields(l.names) {
			if listed[name] {
				t.Errorf("%s is in the table twice", name)
			}
			listed[name] = true
			if sprig.TxtFuncMap()[name] == nil {
				t.Errorf("sprig has no function %s", name)
			}
			denied := unsupportedFuncs()["sprig_"+name] != ""
			if denied != (l.limit == "the function always fails") {
				t.Errorf("%s: always fails %t, but the table says: %s", name, denied, l.limit)
			}
			if f := functions["sprig_"+name]; denied && f != nil {
				t.Errorf("templates can call %s", name)
			} else if !denied && f == nil && (*renderPass)(nil).renderPassFuncs()["sprig_"+name] == nil {
				t.Errorf("templates cannot call %s", name)
			}
		}
	}
	for name := range sprig.TxtFuncMap() {
		if !listed[name] {
			t.Errorf("nothing is known to limit %s", name)
		}
	}
}

// Every function limits its memory when all of its arguments are large.
func TestSprigFunctionsLimitLargeArguments(t *testing.T) {
	text := strings.Repeat("aB c,1-", maxContentSize/4/8)
	large := []any{text, slices.Repeat([]any{"aB"}, 20_000), map[string]any{"userinfo": text, "path": text}}
	for name, f := range pureFuncs() {
		if !strings.HasPrefix(name, "sprig_") {
			continue
		}
		v := reflect.ValueOf(f)
		var params []reflect.Type
		for i := range v.Type().NumIn() {
			params = append(params, v.Type().In(i))
		}
		if last := len(params) - 1; v.Type().IsVariadic() {
			params[last] = params[last].Elem()
			params = append(params, params[last])
		}
		numbers, values := []int{7}, []any{text}
		if slices.Contains(params, reflect.TypeFor[int]()) {
			numbers = []int{1 << 50, -1 << 50, 100_000, 7}
		}
		if slices.Contains(params, anyType) { // strings too, because wrapFuncsToAcceptVarItems replaces their type
			values = large
		}
		for _, number := range numbers {
			for _, value := range values {
				var args []reflect.Value
				for _, param := range params {
					arg := map[reflect.Kind]any{
						reflect.Int: number, reflect.Bool: true, reflect.Map: large[2], reflect.Struct: time.Unix(int64(number), 0),
					}[param.Kind()]
					if arg == nil {
						arg = value
					}
					args = append(args, reflect.ValueOf(arg))
				}
				n := allocated(func() {
					defer func() { _ = recover() }() // text/template converts a panic of a function to an error
					v.Call(args)
				})
				if n > maxAllocation {
					t.Errorf("%s with %d and %T allocates %d bytes", name, number, value, n)
				}
			}
		}
	}
}

// The errors of functions for URLs do not contain the URL, which can have a password.
func TestURLErrorsHaveNoPassword(t *testing.T) {
	const host, password = "http://user:secret@host:port", "sec%zzret"
	functions := pureSprigFuncs()
	if _, err := functions["urlParse"].(func(string) (any, error))(host); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("urlParse: %v", err)
	}
	if _, err := functions["urlJoin"].(func(map[string]any) (string, error))(map[string]any{"userinfo": password}); err == nil || strings.Contains(err.Error(), password) {
		t.Errorf("urlJoin: %v", err)
	}
}
