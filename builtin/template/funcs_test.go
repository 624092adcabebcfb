package template

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// renderText renders a template for a task. The node has some variables and
// services.
func renderText(t *testing.T, text string) (string, error) {
	t.Helper()
	f := newFixture(t)
	f.setVariable("app/db", "user", "bob", "json", `{"a":[1,2]}`, "b64", "aGk=", "n", "7")
	f.setVariable("app/web", "x", "y")
	f.services = []hook.Service{
		{ID: "1", Name: "db", Address: "10.0.0.1", Port: 5432, Tags: []string{"primary", "v2"}},
		{ID: "2", Name: "db", Address: "10.0.0.2", Port: 5433, Tags: []string{"v2"}},
		{ID: "3", Name: "web", Address: "10.0.0.3", Port: 80},
		{ID: "4", Name: "web", Address: "10.0.0.4", Port: 80, Status: hook.ServiceCritical},
		{ID: "5", Name: "web", Address: "10.0.0.5", Port: 80, Status: hook.ServicePassing},
	}
	req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: text}))
	defer f.stopTasks()
	if _, err := f.hook.Prestart(t.Context(), req); err != nil {
		return "", err
	}
	return f.readFile("web/local/out"), nil
}

func TestFunctions(t *testing.T) {
	seen := map[string]bool{}
	for _, test := range []struct{ text, want string }{
		{`{{ base64Encode "hi" }} {{ base64Decode "aGk=" }} {{ base64URLEncode "??>" }} {{ base64URLDecode "Pz8-" }}`, "aGk= hi Pz8- ??>"},
		{`{{ sha256Hex "x" }}`, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"},
		{`{{ md5sum "x" }}`, "9dd4e461268c8034f5c8564e155c67a6"},
		{`{{ hmacSHA256Hex "message" "key" }}`, "6e9ef29b75fffc5b7abae527d58fdadb2fe42e7219011976917343065f58ed4a"},
		{`{{ contains "a" (split "," "a,b") }} {{ in (split "," "a,b") "c" }} {{ contains "ell" "hello" }}`, "true false true"},
		{`{{ $l := split "," "a,b" }}{{ containsAll $l $l }} {{ containsAny (split "," "b,c") $l }} {{ containsNone (split "," "c,d") $l }} {{ containsNotAll (split "," "b,c") $l }}`, "true true true true"},
		{`{{ split "," "a,b" | join "-" }} {{ range $k, $v := splitToMap "," ":" "a:1,b:2" }}{{ $k }}{{ $v }}{{ end }}`, "a-b a1b2"},
		{`{{ indent 2 "a\nb\n" }}`, "  a\n  b\n"},
		{`{{ "a.b.c" | replaceAll "." "_" }} {{ "foobar" | regexReplaceAll "o+" "<$0>" }} {{ "foo" | regexMatch "^f" }}`, "a_b_c f<oo>bar true"},
		{`{{ "--x--" | trim "-" }} {{ "/x" | trimPrefix "/" }} {{ "x/" | trimSuffix "/" }} {{ trimSpace " x " }}`, "x x x x"},
		{`{{ toLower "AB" }} {{ toUpper "ab" }} {{ toTitle "ab cd" }}`, "ab AB Ab Cd"},
		{`{{ parseBool "true" }} {{ parseFloat "1.5" }} {{ parseInt "-3" }} {{ parseUint "3" }} {{ parseInt "" }}`, "true 1.5 -3 3 0"},
		{`{{ with parseJSON "{\"a\":{\"b\":[1,\"x\"]}}" }}{{ .a.b }} {{ toJSON . }}{{ end }}`, `[1 x] {"a":{"b":[1,"x"]}}`},
		{`{{ with parseYAML "a:\n  b: [1, x]\n" }}{{ .a.b }}{{ end }}`, "[1 x]"},
		{`{{ splitToMap "," ":" "a:<" | toJSON }} {{ splitToMap "," ":" "a:<" | toUnescapedJSON }}`, `{"a":"\u003c"} {"a":"<"}`},
		{`{{ splitToMap "," ":" "a:<" | toJSONPretty }} {{ splitToMap "," ":" "a:<" | toUnescapedJSONPretty }}`, "{\n  \"a\": \"\\u003c\"\n} {\n  \"a\": \"<\"\n}"},
		{`{{ parseJSON "{\"a\":{\"b\":1}}" | toYAML }}`, "a:\n  b: 1"},
		{`{{ $y := parseYAML "a: 12345678\nb: 1.5" }}{{ $y.a }} {{ add $y.a 1 }} {{ $y.b }}`, "12345678 12345679 1.5"},
		{`{{ parseJSON "{\"a\":{\"b\":1.5,\"c\":2}}" | toTOML }}`, "[a]\n  b = 1.5\n  c = 2"},
		{`{{ parseJSON "{\"a/b\":1,\"a/c\":2}" | explode | toJSON }} {{ parseJSON "{\"x/y\":1}" | explodeMap | toJSON }}`, `{"a":{"b":1,"c":2}} {"x":{"y":1}}`},
		{`{{ $a := parseJSON "{\"m\":{\"x\":1}}" }}{{ $b := parseJSON "{\"m\":{\"x\":2,\"y\":3}}" }}{{ mergeMap $a $b | toJSON }} {{ mergeMapWithOverride $a $b | toJSON }}`, `{"m":{"x":1,"y":3}} {"m":{"x":2,"y":3}}`},
		{`{{ add 1 2 }} {{ 5 | subtract 2 }} {{ multiply 2 3 }} {{ 7 | divide 2 }} {{ 7 | modulo 4 }} {{ minimum 2 1 }} {{ maximum 2 1.5 }}`, "3 3 6 3 3 1 2"},
		{`{{ range loop 3 }}{{ . }}{{ end }} {{ range loop 2 4 }}{{ . }}{{ end }}`, "012 23"},
		{`{{ scratch.Set "a" 1 }}{{ scratch.SetX "a" 2 }}{{ scratch.MapSet "m" "k" "v" }}{{ scratch.MapSetX "m" "k" "w" }}{{ scratch.Get "a" }} {{ scratch.Key "z" }} {{ scratch.MapValues "m" }}`, "1 false [v]"},
		{`{{ timestamp "2006" | len }} {{ timestamp | len }} {{ timestamp "unix" | len }}`, "4 20 10"},
		{`{{ sockaddr "GetInterfaceIP \"lo\"" }} {{ sockaddr "GetAllInterfaces | include \"name\" \"^lo$\" | include \"type\" \"IPv4\"" "| attr \"address\"" }}`, "127.0.0.1 127.0.0.1"},
		{`{{ spew_sdump "x" }}{{ spew_dump "x" }}{{ spew_printf "%d" 1 }}{{ spew_sprintf "%d" 2 }}`, "\"x\"\n\"x\"\n12"},
		{`{{ print 1 "a" }} {{ printf "%03d" 7 }} {{ println "x" }}{{ html "<" }} {{ js "'" }} {{ urlquery "a b" }}`, "1a 007 x\n&lt; \\' a+b"},

		{`{{ "" | sprig_default "d" }} {{ "x" | sprig_default "d" }} {{ sprig_coalesce "" 0 "c" }} {{ sprig_empty "" }} {{ true | sprig_ternary "yes" "no" }}`, "d x c true yes"},
		{`{{ sprig_trim " x " }} {{ "ab" | sprig_trimPrefix "a" }} {{ "ab" | sprig_trimSuffix "b" }} {{ sprig_upper "a" }} {{ sprig_lower "A" }} {{ sprig_title "a b" }}`, "x b a A a A B"},
		{`{{ "ab" | sprig_repeat 2 }} {{ sprig_substr 1 3 "abcd" }} {{ sprig_substr 2 -1 "abcd" }} {{ sprig_trunc 2 "abc" }} {{ sprig_trunc -2 "abc" }}`, "abab bc cd ab bc"},
		{`{{ "abc" | sprig_contains "b" }} {{ "abc" | sprig_hasPrefix "a" }} {{ "abc" | sprig_hasSuffix "b" }}`, "true true false"},
		{`{{ sprig_quote "a" 1 }} {{ sprig_squote "a" }} {{ sprig_cat "a" 1 }} {{ "a\nb" | sprig_indent 2 }}{{ "c" | sprig_nindent 2 }} {{ "a.b" | sprig_replace "." "-" }}`, "\"a\" \"1\" 'a' a 1   a\n  b\n  c a-b"},
		{`{{ sprig_regexMatch "^a" "ab" }} {{ sprig_regexFind "b+" "abbc" }} {{ sprig_regexReplaceAll "b(b)" "abbc" "<$1>" }}`, "true bb a<b>c"},
		{`{{ sprig_list 1 "b" | sprig_join "-" }} {{ "a,b" | sprig_splitList "," }} {{ sprig_toStrings (sprig_list 1 2) }} {{ sprig_sortAlpha (sprig_list "b" "a") }}`, "1-b [a b] [1 2] [a b]"},
		{`{{ sprig_add 1 "2" 3 }} {{ sprig_sub 5 2 }} {{ sprig_mul 2 3 4 }} {{ sprig_div 7 2 }} {{ sprig_mod 7 4 }} {{ sprig_max 1 3 2 }} {{ sprig_min 2 1 }} {{ sprig_until 3 }} {{ sprig_until -2 }}`, "6 3 24 3 3 3 1 [0 1 2] [0 -1]"},
		{`{{ sprig_int "7" }} {{ sprig_int64 7.9 }} {{ sprig_atoi "-3" }} {{ sprig_int "" }} {{ sprig_toString 1.5 }}`, "7 7 -3 0 1.5"},
		{`{{ sprig_date "2006" sprig_now | len }} {{ sprig_date "2006" 86400 }} {{ sprig_now | sprig_dateModify "-24h" | sprig_date "2006-01-02" | len }}`, "4 1970 10"},
		{`{{ sprig_b64enc "hi" }} {{ sprig_b64dec "aGk=" }} {{ sprig_sha256sum "x" }}`, "aGk= hi 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"},
		{`{{ (sprig_fromJson "{\"a\":1}").a }} {{ sprig_list 1 | sprig_toJson }} {{ sprig_list 1 | sprig_toPrettyJson }}`, "1 [1] [\n  1\n]"},
		{`{{ $l := sprig_list 1 2 1 }}{{ sprig_first $l }} {{ sprig_last $l }} {{ sprig_append $l 4 }} {{ sprig_concat $l (sprig_list 5) }} {{ sprig_uniq $l }} {{ $l | sprig_has 2 }} {{ sprig_first (sprig_list) }}`, "1 1 [1 2 1 4] [1 2 1 5] [1 2] true <no value>"},
		{`{{ $d := sprig_dict "a" 0 "b" 2 }}{{ sprig_get $d "a" }} {{ sprig_get $d "z" }}| {{ sprig_hasKey $d "b" }} {{ sprig_keys $d }} {{ sprig_merge $d (sprig_dict "b" 3 "c" 4) }} {{ sprig_mergeOverwrite $d (sprig_dict "b" 3) }}`, "0 | true [a b] map[a:0 b:2 c:4] map[a:0 b:3]"},
		{`{{ sprig_base "/a/b.c" }} {{ sprig_dir "/a/b.c" }} {{ sprig_ext "/a/b.c" }} {{ sprig_clean "/a/../b" }} {{ sprig_isAbs "a" }}`, "b.c /a .c /b false"},
		{`{{ sprig_trimAll "$" "$5$" }} {{ sprig_nospace " a b " }} {{ sprig_abbrev 6 "hello world" }} {{ sprig_plural "one" "many" 1 }} {{ len (split "," "a,b") | sprig_plural "one" "many" }}`, "5 ab hel... one many"},
		{`{{ range split " " "FirstName firstName HTTPServer http_server a-b" }}{{ sprig_snakecase . }} {{ sprig_kebabcase . }} {{ sprig_camelcase . }};{{ end }}`, "first_name first-name FirstName;first_name first-name FirstName;http_server http-server Httpserver;http_server http-server HttpServer;a_b a-b AB;"},
		{`{{ sprig_regexFindAll "[0-9]" "1a2b3" 2 }} {{ sprig_regexSplit "[,;]" "a,b;c" -1 }} {{ sprig_regexQuoteMeta "a.b" }} {{ sprig_mustRegexMatch "^a" "ab" }}`, `[1 2] [a b c] a\.b true`},
		{`{{ (sprig_split "." "a.b")._1 }} {{ (sprig_splitn "." 2 "a.b.c")._1 }}`, "b b.c"},
		{`{{ sprig_add1 1 }} {{ sprig_untilStep 0 6 2 }} {{ sprig_untilStep 3 0 -1 }} {{ sprig_untilStep 0 3 0 }} {{ sprig_seq 3 }} {{ sprig_seq 2 0 }} {{ sprig_seq 0 2 4 }}`, "2 [0 2 4] [3 2 1] [] 1 2 3 2 1 0 0 2 4"},
		{`{{ sprig_addf 1.5 2 }} {{ sprig_subf 3 0.5 }} {{ sprig_mulf 2 1.5 }} {{ sprig_divf 3 2 }} {{ sprig_floor 1.7 }} {{ sprig_ceil "1.2" }} {{ sprig_round 1.256 2 }} {{ sprig_float64 "1.5" }}`, "3.5 2.5 3 1.5 1 2 1.26 1.5"},
		{`{{ $t := sprig_toDate "2006-01-02 15:04" "2024-02-29 10:00" }}{{ sprig_htmlDate $t }} {{ sprig_dateInZone "15:04" 3600 "UTC" }} {{ sprig_unixEpoch $t | len }} {{ sprig_duration 90 }} {{ sprig_ago sprig_now }}`, "2024-02-29 01:00 10 1m30s 0s"},
		{`{{ sprig_b32enc "hi" }} {{ sprig_b32dec "NBUQ====" }} {{ sprig_sha1sum "x" }} {{ sprig_sha512sum "x" | sprig_trunc 6 }} {{ (sprig_urlParse "http://u@h:80/p?q#f").hostname }}`, "NBUQ==== hi 11f6ad8ec52a2984abaafd7c3b516503785c2072 a4abd4 h"},
		{`{{ $l := sprig_tuple 1 2 "" 3 }}{{ sprig_rest $l }} {{ sprig_initial $l }} {{ sprig_prepend $l 0 }} {{ sprig_reverse $l }} {{ sprig_without $l 2 "" }} {{ sprig_compact $l }} {{ sprig_slice $l 1 2 }} {{ sprig_slice $l 3 }} {{ sprig_chunk 3 $l | len }} {{ $l }}`, "[2  3] [1 2 ] [0 1 2  3] [3  2 1] [1 3] [1 2 3] [2] [3] 2 [1 2  3]"},
		{`{{ sprig_rest (sprig_list) }}{{ sprig_initial (sprig_list) }}{{ sprig_slice (sprig_list) 1 }}{{ sprig_toRawJson "<" }} {{ sprig_all 1 "" }} {{ sprig_any 1 "" }}`, `[][][]"<" false true`},
		{`{{ $d := sprig_dict "a" 1 "b" (sprig_dict "c" 2) }}{{ sprig_dig "b" "c" 0 $d }} {{ sprig_dig "b" "z" "d" $d }} {{ sprig_pick $d "a" }} {{ sprig_omit $d "b" }} {{ sprig_pluck "a" $d (sprig_dict) }} {{ sprig_values $d }} {{ sprig_deepCopy $d | len }} {{ len $d }}`, "2 d map[a:1] map[a:1] [1] [1 map[c:2]] 2 2"},
		{`{{ sprig_kindOf "" }} {{ sprig_kindIs "int" 1 }} {{ sprig_typeOf 1 }} {{ sprig_typeIs "string" "" }} {{ sprig_deepEqual (sprig_list 1) (sprig_list 1) }}`, "string true int true true"},
		{`{{ with sprig_semver "1.2.3-beta+b" }}{{ .Major }} {{ .Minor }} {{ .Patch }} {{ .Prerelease }} {{ .Metadata }} {{ . }}{{ end }} {{ sprig_semverCompare ">= 1.2, < 2" "1.3.0" }}`, "1 2 3 beta b 1.2.3-beta+b true"},
		{`{{ sprig_semverCompare "^1.2.0" "1.9.3" }} {{ sprig_semverCompare "~1.2" "1.2.9" }} {{ sprig_semverCompare "1.2.x || 2 - 3" "2.5.0" }} {{ sprig_semverCompare "^1.2.0" "2.0.0" }}`, "true true true false"},
		{`{{ $v := sprig_semver "v1.4" }}{{ $v.Compare (sprig_semver "1.3") }} {{ $v.Original }} {{ $v }}`, "1 v1.4 1.4.0"},
		{`{{ sprig_uuidv4 | regexMatch "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$" }} {{ sprig_randAlphaNum 9 | regexMatch "^[0-9A-Za-z]{9}$" }} {{ sprig_randAlpha 1 | len }} {{ sprig_randNumeric 2 | len }} {{ sprig_randAscii 3 | len }} {{ sprig_randBytes 3 | len }} {{ sprig_randInt 5 6 }} {{ sprig_shuffle "aa" }}`, "true true 1 2 3 4 5 aa"},
		{`{{ with nomadVar "app/db" }}{{ .user | sprig_upper }} {{ .nope | sprig_default "d" }} {{ sprig_add .n 1 }} {{ sprig_list .user | sprig_join "," }}{{ end }}`, "BOB d 8 bob"},

		{`{{ env "GREETING" }} {{ env "NOPE" }}| {{ env "attr.kernel.name" }} {{ env "meta.rack" }} {{ env "meta.nope" }}| {{ mustEnv "GREETING" }} {{ envOrDefault "NOPE" "no" }} {{ envOrDefault "GREETING" "no" }}`, "hello | linux r1 | hello no hello"},
		{`{{ env "PATH" }}{{ env "HOME" }}`, ""}, // variables of this process

		{`{{ with nomadVar "app/db" }}{{ .user }} {{ .user.Value }} {{ .b64 | base64Decode }} {{ parseInt .n | add 1 }} {{ (parseJSON .json.Value).a }} {{ eq .user "bob" }} {{ .nope }}|{{ end }}`, "bob bob hi 8 [1 2] true |"},
		{`{{ with nomadVar "/app/web@default.global" }}{{ .Keys }} {{ .Values }} {{ range .Tuples }}{{ .K }}={{ .V }}{{ end }} {{ range $k, $v := . }}{{ $k }}{{ $v }}{{ end }} {{ toJSON . }}{{ end }}`, `[x] [y] x=y xy {"x":"y"}`},
		{`{{ nomadVarExists "app/db" }} {{ nomadVarExists "nope" }}`, "true false"},
		{`{{ range nomadVarList "app" }}{{ . }}@{{ .Namespace }}:{{ .Path }} {{ end }}{{ range nomadVarListSafe }}{{ .Path }} {{ end }}`, "app/db@default:app/db app/web@default:app/web app/db app/web "},
		{`{{ range nomadService "db" }}{{ .Name }} {{ .Address }}:{{ .Port }} {{ .Tags | join "+" }};{{ end }}{{ range nomadService "primary.db" }}{{ .ID }}{{ end }}{{ range nomadService "nope" }}x{{ end }}`, "db 10.0.0.1:5432 primary+v2;db 10.0.0.2:5433 v2;1"},
		{`{{ nomadService 1 "key" "db" | len }} {{ nomadService 5 "key" "db" | len }} {{ range nomadServices }}{{ .Name }}{{ .Tags }} {{ end }}`, "1 2 db[primary v2] web[] "},
		{`{{ range service "db" }}{{ .Name }} {{ .Address }}:{{ .Port }} {{ .Tags | join "+" }} {{ .Status }};{{ end }}{{ range service "primary.db" "any" }}{{ .ID }}{{ end }}{{ range service "db@elsewhere" }}x{{ end }}{{ range services }}{{ .Name }} {{ end }}`, "db 10.0.0.1:5432 primary+v2 passing;db 10.0.0.2:5433 v2 passing;1db web "},
		{`{{ range service "web" }}{{ .ID }}{{ .Status }} {{ end }}{{ range service "web" "any" }}{{ .ID }}{{ end }} {{ range service "web|critical" }}{{ .ID }}{{ end }} {{ range service "web" "passing, warning" }}{{ .ID }}{{ end }} {{ range nomadService "web" }}{{ .ID }}{{ end }}`, "3passing 5passing 345 4 35 345"},
		{`{{ range $tag, $list := nomadService "db" | byTag }}{{ $tag }}{{ len $list }} {{ end }}{{ range $port, $list := nomadService "db" | byPort }}{{ $port }} {{ end }}`, "primary1 v22 5432 5433 "},
		{`{{ define "t" }}{{ if . }}{{ len . }}{{ template "t" (slice . 1) }}{{ end }}{{ end }}{{ template "t" "abc" }}{{ range loop 2000 }}{{ template "t" "" }}{{ end }}`, "321"},
		{`{{ range $i := loop 4 }}{{ if eq $i 2 }}{{ continue }}{{ end }}{{ if eq $i 3 }}{{ break }}{{ end }}{{ $i }}{{ else }}none{{ end }}{{ with "" }}{{ else }}e{{ end }}`, "01e"},
	} {
		got, err := renderText(t, test.text)
		if err != nil || got != test.want {
			t.Errorf("%s\ngot  %q, %v\nwant %q", test.text, got, err, test.want)
		}
		for name := range (*renderPass)(nil).renderPassFuncs() {
			seen[name] = seen[name] || strings.Contains(test.text, name)
		}
		for name := range pureFuncs() {
			seen[name] = seen[name] || strings.Contains(test.text, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if !seen[name] && unsupportedFuncs()[name] == "" && name[0] != '_' && name != "file" && !strings.HasPrefix(name, "sprig_") {
			t.Errorf("nothing tests %s", name)
		}
	}
}

func TestFunctionErrors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{`{{ service "db" "healthy" }}`, `service: "healthy" is no status: use any, passing, warning, critical, maintenance`},
		{`{{ divide 0 1 }}`, "a division by zero"},
		{`{{ modulo 0 1 }}`, "a division by zero"},
		{`{{ modulo 1.5 1 }}`, "modulo wants whole numbers"},
		{`{{ add "a" 1 }}`, "add wants numbers, not int and string"},
		{`{{ toUpper 1 }}`, "toUpper wants a text, not int"},
		{`{{ join "," 1 }}`, "int is no list"},
		{`{{ contains 1 2 }}`, "int has no elements"},
		{`{{ containsAll 1 2 }}`, "int is no list"},
		{`{{ loop "x" }}`, "loop: x is no whole number"},
		{`{{ loop 0 100000000 }}`, "a loop of more than 100000 steps"},
		{`{{ indent 99999999 "x" }}`, "a text of more than 4194304 bytes"},
		{`{{ printf "%1000000d" 1 | replaceAll " " "0123456789" }}`, "a text of more than"},
		{`{{ regexReplaceAll " " (printf "%1000d" 1) (printf "%10000d" 1) }}`, "a text of more than"},
		{`{{ join (printf "%1000000d" 1) (split "," "a,b,c,d,e,f") }}`, "a text of more than"},
		{`{{ parseYAML "a: [" }}`, "parseYAML"},
		{`{{ parseYAML "` + yamlBomb + `" }}`, "the document stands for more than 4194304 bytes"},
		{`{{ parseYAML "` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `" }}`, "nested more than 1000 deep"},
		{`{{ parseYAML "` + strings.Repeat("- ", 2000) + `x" }}`, "nested more than 1000 deep"},
		{`{{ parseJSON "` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `" }}`, "exceeded max depth"},
		{`{{ toTOML 1 }}`, "only a map can be TOML"},
		{`{{ parseJSON "{\"a\":1,\"a/b\":2}" | explode }}`, `"a" is a value and a branch`},
		{`{{ sprig_dict (sprig_repeat 1001 "a/") 1 | explode }}`, "a path with more than 1000 parts"},
		{`{{ splitToMap "," ":" ":x" }}`, "a pair without a key"},
		{`{{ nomadService 0 "k" "db" }}`, "0 is no number of instances"},
		{`{{ nomadService "a" "b" }}`, "nomadService takes a name"},
		{`{{ sockaddr "GetEverything" }}`, `function "GetEverything" not defined`},
		{`{{ timestamp "a" "b" }}`, "timestamp takes one format"},
		{`{{ index (split "," "a") 5 }}`, "index out of range"},

		{`{{ sprig_fail "out of luck" }}`, "out of luck"},
		{`{{ sprig_repeat 99999999 "x" }}`, "a text of more than"},
		{`{{ sprig_until 99999999 }}`, "a list of more than 100000 elements"},
		{`{{ sprig_untilStep 0 100002 1 }}`, "a list of more than 100000 elements"},
		{`{{ sprig_seq 100002 }}`, "a list of more than 100000 elements"},
		{`{{ sprig_seq }}`, "seq takes one to three numbers"},
		{`{{ sprig_chunk 0 (sprig_list) }}`, "chunks of 0"},
		{`{{ sprig_dig "a" }}`, "dig takes keys, a default and a dictionary"},
		{`{{ sprig_dateInZone "15" 0 "Mars" }}`, `no zone "Mars" here`},
		{`{{ sprig_urlParse "http://u:secret@h:x" }}`, "invalid port"},
		{`{{ sprig_semver "x" }}`, "invalid semantic version"},
		{`{{ sprig_semverCompare "what" "1.2.3" }}`, `improper constraint: "what"`},
		{`{{ sprig_randInt 2 2 }}`, "a random number from 2 to before 2"},
		{`{{ sprig_randAlpha 99999999 }}`, "99999999 random bytes"},
		{`{{ sprig_div 1 0 }}`, "a division by zero"},
		{`{{ sprig_add "x" 1 }}`, "invalid syntax"},
		{`{{ sprig_first 1 }}`, "int is no list"},
		{`{{ sprig_regexFind "(" "x" }}`, "missing closing )"},

		// Values that templates can build fast, and whose printed size grows
		// exponentially.
		{`{{ range loop 40 }}{{ scratch.MapSet "m" "a" (scratch.Get "m") }}{{ scratch.MapSet "m" "b" (scratch.Get "m") }}{{ end }}{{ scratch.Get "m" }}`, "a value of more than 8388608 bytes"},
		{`{{ range loop 1002 }}{{ scratch.Set "n" (scratch.Get "m") }}{{ scratch.Set "m" nil }}{{ scratch.MapSet "m" "a" (scratch.Get "n") }}{{ end }}`, "nested more than 1000 deep"},
		{`{{ $l := sprig_list "x" }}{{ range loop 40 }}{{ $l = sprig_list $l $l }}{{ end }}`, "a value of more than 8388608 bytes"},
		{`{{ $l := sprig_list "x" }}{{ range loop 40 }}{{ $l = sprig_concat $l $l }}{{ end }}`, "a value of more than 8388608 bytes"},
		{`{{ $d := sprig_dict }}{{ range loop 1002 }}{{ $d = sprig_dict "d" $d }}{{ end }}`, "nested more than 1000 deep"},
		{`{{ scratch.Set "s" scratch }}`, "scratch is not a value"},
		{`{{ scratch.MapSet "m" "s" scratch }}`, "scratch is not a value"},
		{`{{ range $i := loop 10 }}{{ scratch.Set (print $i) (printf "%1000000d" 1) }}{{ end }}`, "scratch holds more than 8388608 bytes"},
		{`{{ printf "%1000000[1]d%1000000[1]d%1000000[1]d%1000000[1]d%1000000[1]d%1000000[1]d" 1 | len }}`, "a text of more than 4194304 bytes"},
		{`{{ printf "` + strings.Repeat("%1000000[1]d", 100) + `" 1 }}`, "a text of more than 4194304 bytes may come of it"},
		{`{{ $x := printf "%1000000d" 1 }}{{ printf "` + strings.Repeat("%[1]s", 100) + `" $x }}`, "a text of more than 4194304 bytes may come of it"},
		{`{{ $x := printf "%1000000d" 1 }}{{ print` + strings.Repeat(" $x", 100) + ` }}`, "a value of more than 8388608 bytes"},
		{`{{ parseYAML (print "a: &a " (printf "%1000000d" 1 | replaceAll " " "x") "\nb: [*a,*a,*a,*a,*a,*a,*a,*a,*a]") }}`, "the document stands for more than 4194304 bytes"},
	} {
		if got, err := renderText(t, test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %q, %v, want an error with %q", test.text, got, err, test.want)
		}
	}
}

const yamlBomb = `a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n` +
	`d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n`

// nomadService with a key selects the same instances as long as they exist.
func TestServiceSelectionIsStableByKey(t *testing.T) {
	var instances []serviceInstance
	for _, id := range []string{"1", "2", "3", "4"} {
		instances = append(instances, serviceInstance{Service: hook.Service{ID: id}})
	}
	first := func(instances []serviceInstance, key string) string {
		return slices.MinFunc(instances, func(a, b serviceInstance) int {
			return strings.Compare(instanceSortHash(key, a), instanceSortHash(key, b))
		}).ID
	}
	got := map[string]bool{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		id := first(instances, key)
		got[id] = true
		for i := range instances {
			if less := slices.Delete(slices.Clone(instances), i, i+1); instances[i].ID != id && first(less, key) != id {
				t.Errorf("key %s moves from %s because %s has gone", key, id, instances[i].ID)
			}
		}
	}
	if len(got) < 2 {
		t.Errorf("all keys get %v", got)
	}
}
