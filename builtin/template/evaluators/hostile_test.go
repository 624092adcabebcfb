package evaluators

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
)

// hostileExpressions take time or memory. %[1]d is a large number.
var hostileExpressions = []string{
	`{{ range loop %[1]d }}{{ end }}`,
	`{{ range loop %[1]d }}{{ range loop %[1]d }}x{{ end }}{{ end }}`,
	`{{ len (sprig_until %[1]d) }}`,
	`{{ sprig_repeat %[1]d "x" }}`,
	`{{ printf "%%%[1]dd" 1 }}`,
	`{{ indent %[1]d "a" }}`,
	`{{ $x := "ab" }}{{ range loop 64 }}{{ $x = print $x $x }}{{ end }}{{ $x }}`,
	`{{ $x := sprig_list 1 }}{{ range loop 64 }}{{ $x = sprig_list $x $x }}{{ end }}{{ $x | toJSON }}`,
	`{{ $d := sprig_dict }}{{ $_ := sprig_set $d "d" $d }}{{ $d | toJSON }}`,
	`{{ $d := sprig_dict }}{{ $_ := sprig_set $d "d" $d }}{{ spew_sdump $d }}`,
	`{{ $d := sprig_dict }}{{ $_ := sprig_set $d "d" $d }}{{ $d }}`,
	`{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" 1 }}`,
	`{{ define "a" }}{{ template "b" }}{{ template "b" }}{{ end }}{{ define "b" }}{{ range loop 64 }}{{ template "c" }}{{ end }}{{ end }}{{ define "c" }}{{ range loop %[1]d }}{{ end }}{{ end }}{{ template "a" }}`,
	`{{ regexReplaceAll "(a*)*b" "x" (sprig_repeat 1000000 "a") }}`,
	`{{ regexMatch "(((a{1,100}){1,100}){1,100})" "a" }}`,
	`{{ sprig_regexFindAll "x*y|x" (sprig_repeat 1000000 "x") -1 | len }}`,
	"{{ parseYAML \"a: &a [x,x,x,x,x,x,x,x]\\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\" | toJSON | len }}",
	`{{ sprig_derivePassword 1 "long" "p" "u" "s" }}`,
	`{{ sprig_genPrivateKey "rsa" | len }}`,
	`{{ range loop 100 }}{{ sprig_bcrypt "x" }}{{ end }}`,
	`{{ sprig_genCA "x" %[1]d }}`,
	`{{ toTOML (parseJSON "{\"a\":1e%[1]d}") }}`,
	`{{ multiply %[1]d %[1]d }}{{ sprig_seq 1 %[1]d }}`,
	`{{ scratch.Set "a" (sprig_repeat 100000000 "x") }}{{ scratch.Set "b" scratch.Values }}{{ scratch }}`,
	`{{ sockaddr "GetAllInterfaces | join \"string\" \" \"" }}{{ sockaddr "range loop" }}`,
	`{{ splitToMap "" "" (sprig_repeat 1000000 "ab") }}`,
	`{{ sprig_shuffle (sprig_repeat 10000000 "x") | len }}`,
	`{{ replaceAll "" (sprig_repeat 10000 "x") (sprig_repeat 10000 "y") | len }}`,
}

// newHostileTemplate combines hostile expressions.
func newHostileTemplate(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(2) {
		text := hostileExpressions[r.IntN(len(hostileExpressions))]
		if strings.Contains(text, "%") {
			text = fmt.Sprintf(text, 1<<(10+r.IntN(40)))
		}
		if r.IntN(4) == 0 && !strings.Contains(text, "define") {
			text = "{{ range loop 1000 }}" + text + "{{ end }}"
		}
		b.WriteString(text)
	}
	return b.String()
}

// Templates of another task are evaluated while hostile ones come without a break. NOMAD_LITE_HOSTILE_TEMPLATES is their number.
func TestHostileTemplates(t *testing.T) {
	count := 40
	if text := os.Getenv("NOMAD_LITE_HOSTILE_TEMPLATES"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	p := newTestPool(t)
	p.limitsWhenAlone.cpu, p.limitsWhenAlone.wall, p.limitsWhenShared.wall = 200*time.Millisecond, 5*time.Minute, 5*time.Minute // of thirty seconds each, the templates would take days
	stop := make(chan struct{})
	var others, hostile sync.WaitGroup
	var slowest time.Duration
	evaluations := 0
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			begin := time.Now()
			expectText(t, p, "{{ add 1 2 }}", "3")
			slowest = max(slowest, time.Since(begin))
			evaluations++
		}
	})
	texts := make(chan string)
	var mu sync.Mutex
	limited, results, failures := 0, 0, 0
	for range 20 {
		hostile.Go(func() {
			for text := range texts {
				request := &evaluate.Request{Text: text, JobID: "hostile"}
				result, err := p.Evaluate(t.Context(), request)
				isLimited := false
				if _, isLimited = errors.AsType[*LimitError](err); isLimited {
					result, err = p.EvaluateAlone(t.Context(), request)
				}
				_, exceedsAll := errors.AsType[*LimitError](err)
				mu.Lock()
				switch {
				case exceedsAll || isLimited && err == nil:
					limited++
				case err != nil:
					t.Errorf("seed %d: %.200s: %v", seed, text, err)
				case result.Err != "":
					failures++
				default:
					results++
				}
				mu.Unlock()
			}
		})
	}
	for range count {
		texts <- newHostileTemplate(r)
	}
	close(texts)
	hostile.Wait()
	close(stop)
	others.Wait()
	t.Logf("seed %d: %d hostile templates: %d exceeded a limit, %d failed, %d were rendered; %d evaluations of another task, the slowest after %v",
		seed, count, limited, failures, results, evaluations, slowest)
	if evaluations == 0 {
		t.Error("no template of another task was evaluated")
	}
	if os.Getenv("NOMAD_LITE_HOSTILE_TEMPLATES") != "" && slowest > 2*time.Second {
		t.Errorf("a template of another task was evaluated after %v", slowest)
	}
}
