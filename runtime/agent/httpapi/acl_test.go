package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
)

const unknownSecret = "00000000-0000-4000-8000-00000000ffff"

// aclFixture is a fixture with access control and a management token.
type aclFixture struct {
	*fixture
	resetFile  string
	management string // the secret of the management token; empty before the bootstrap
}

func newACLFixture(t testing.TB, edit func(*Config)) *aclFixture {
	t.Helper()
	f := &aclFixture{resetFile: filepath.Join(t.TempDir(), "acl-bootstrap-reset")}
	f.fixture = newFixture(t, func(c *Config) {
		if edit != nil {
			edit(c)
		}
		c.AccessControl = accesscontrol.New(accesscontrol.Config{
			Store: c.Store, Logger: hclog.NewNullLogger(), ResetFile: f.resetFile,
			MinExpirationTTL: time.Second, MaxExpirationTTL: 24 * time.Hour, TokenGCThreshold: time.Hour,
		})
	})
	return f
}

// bootstrap makes the management token.
func (f *aclFixture) bootstrap(t testing.TB) *aclFixture {
	t.Helper()
	var token struct{ SecretID string }
	f.mustDecode(t, f.sendAs("", "PUT", "/v1/acl/bootstrap", ""), &token)
	f.management = token.SecretID
	return f
}

func (f *aclFixture) mustDecode(t testing.TB, r *http.Response, into any) {
	t.Helper()
	text := bodyText(r)
	if err := json.Unmarshal([]byte(text), into); err != nil || r.StatusCode != 200 {
		t.Fatalf("status %d: %s, %v", r.StatusCode, text, err)
	}
}

func (f *aclFixture) sendAs(secret, method, target, body string) *http.Response {
	var header []string
	if secret != "" {
		header = []string{"X-Nomad-Token", secret}
	}
	return f.send(method, target, strings.NewReader(body), header...)
}

// tokenWith returns the secret of a new token with a new policy.
func (f *aclFixture) tokenWith(t testing.TB, rules string) string {
	t.Helper()
	name := "p" + strings.ReplaceAll(uuid.NewString(), "-", "")
	f.putPolicy(t, name, rules)
	var token struct{ SecretID string }
	f.mustDecode(t, f.sendAs(f.management, "PUT", "/v1/acl/token", fmt.Sprintf(`{"Type": "client", "Policies": [%q]}`, name)), &token)
	return token.SecretID
}

func (f *aclFixture) putPolicy(t testing.TB, name, rules string) {
	t.Helper()
	body, err := json.Marshal(map[string]string{"Name": name, "Rules": rules})
	if err != nil {
		t.Fatal(err)
	}
	if r := f.sendAs(f.management, "PUT", "/v1/acl/policy/"+name, string(body)); r.StatusCode != 200 {
		t.Fatal(bodyText(r))
	}
}

// recordedStep is a line of the recorded stories of tokens.
type recordedStep struct {
	Story, Step, Method, Path, Text string
	Token                           *string // nil: not recorded
	Query, Headers                  map[string]string
	Body, Answer                    any
	Status                          int
	AnswerHeaders                   map[string]string `json:"answer_headers"`
	Note                            string
}

// placeholder is what stands for a value that differs in each run.
var placeholder = regexp.MustCompile(`<[a-z-]+(:[^>]*)?>`)

// storyPlayer plays recorded steps, and binds the placeholders to the values that it sees.
type storyPlayer struct {
	*aclFixture
	values map[string]string
}

// fill replaces the placeholders in a text by their values. An accessor or secret without a value gets one.
func (p *storyPlayer) fill(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(name string) string {
		if name == "<time>" {
			return time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		}
		if p.values[name] == "" {
			p.values[name] = uuid.NewString()
		}
		return p.values[name]
	})
}

// matches reports whether a value is the recorded one, and binds placeholders.
func (p *storyPlayer) matches(got, want any) bool {
	switch want := want.(type) {
	case string:
		text, isString := got.(string)
		name := placeholder.FindString(want)
		switch {
		case want == "an answer":
			return got != nil
		case strings.HasPrefix(want, "a list of "):
			list, isList := got.([]any)
			return isList && (fmt.Sprintf("a list of %d", len(list)) == want || len(list) == 0)
		case name != want || name == "":
			return isString && text == want
		case name == "<time>" || name == "<hash>" || name == "<index>" || name == "<n>" || name == "<agent>":
			return got != nil
		case p.values[name] == "":
			p.values[name] = text
			return isString && text != ""
		}
		return isString && strings.EqualFold(text, p.values[name])
	case map[string]any:
		object, ok := got.(map[string]any)
		for key, value := range want {
			isZeroTime := key == "CreateTime" && object[key] == nil // zero times are null in this API
			ok = ok && (isZeroTime || p.matches(object[key], value))
		}
		return ok
	case []any:
		list, ok := got.([]any)
		// A list can be longer here, because steps that the recording does not show make objects.
		return ok && len(list) >= len(want) && !slices.ContainsFunc(want, func(w any) bool {
			return !slices.ContainsFunc(list, func(g any) bool { return p.matches(g, w) })
		})
	}
	return fmt.Sprint(got) == fmt.Sprint(want)
}

// storyExceptions are the steps with another answer here, by the reason.
var storyExceptions = map[string][]string{
	"a token cannot have the secret of another one": {
		"bootstrap: reset with a secret that another token has", "bootstrap: the three management tokens in the list", "create: a chosen secret that exists",
		"read: self of the management token", "list: all", "list: prefix", "one-time token: for the management token",
	},
	"the form of the refusal is an accident there: a text of a library, 500 in place of 403, or no answer": {
		"ways to send a token: malformed", "ways to send a token: malformed, long", "ways to send a token: looks like a JWT", "ways to send a token: two dots",
		"ways to send a token: without hyphens", "expiry: after", "expiry: after: own accessor", "expiry: before: a node route", "update: an end", "update: an end as a time",
	},
	"what has ended is accepted there":                    {"expiry: after: one-time token"},
	"the times and the durations differ in each run":      {"create: ExpirationTime in the past", "create: ExpirationTime in three days"},
	"the reset file is written by the test":               {"bootstrap: the reset file afterwards", "bootstrap: the index that a refusal names", "bootstrap: again with the same file"},
	"the secret is that of the recording, in capitals":    {"ways to send a token: capitals"},
	"lists have other objects, or depend on the order":    {"list: two a page", "list: reverse", "list: global", "list: filter", "list: filter on policies", "roles: list, one a page", "roles: list by prefix", "expiry: after: in the list"},
	"a step of the recording that sends no request":       {"how soon a node learns: seconds until a change is seen"},
	"the token of the step was deleted with its one-time": {"one-time token: exchange for a token that was deleted meanwhile"},
}

// TestRecordedStoriesOfTokens plays the life of policies, tokens and roles against this API.
func TestRecordedStoriesOfTokens(t *testing.T) {
	dir := shareddir.OrSkip(t, filepath.Join("..", "..", ".."), "conformance", "acl")
	steps := shareddir.ReadJSONLines[recordedStep](t, filepath.Join(dir, "tokens.jsonl"))
	synctest.Test(t, func(t *testing.T) {
		p := &storyPlayer{newACLFixture(t, nil), map[string]string{}}
		p.putNode(t)
		excepted, played := map[string]int{}, 0
		for n, s := range steps {
			name := s.Story + ": " + s.Step
			reason := ""
			if s.Path == "/v1/client/stats" && s.Status == 403 && s.Token != nil && *s.Token == "see headers" && requestWithoutToken(s) {
				reason = "a node there has not heard of the anonymous policy yet"
			}
			for r, names := range storyExceptions {
				if slices.Contains(names, name) {
					reason = r
				}
			}
			if reason != "" {
				excepted[reason]++
			}
			p.prepare(t, s)
			if s.Method == "" {
				continue
			}
			code, got, raw := p.play(s)
			if s.Step == "without a body" && s.Story == "bootstrap" && code == 200 {
				p.management = got.(map[string]any)["SecretID"].(string)
			}
			if reason != "" {
				continue
			}
			played++
			switch {
			case code != s.Status:
				t.Errorf("%d %s: status %d, want %d: %s", n+1, name, code, s.Status, raw)
			case s.Text != "" && !p.textMatches(raw, s.Text):
				t.Errorf("%d %s: %q, want %q", n+1, name, raw, s.Text)
			case s.Text == "" && s.Answer != nil && s.Answer != "" && !isNumber(s.Answer) && !p.matches(got, s.Answer):
				wanted, _ := json.Marshal(s.Answer)
				t.Errorf("%d %s:\n got %s\nwant %s", n+1, name, raw, wanted)
			}
		}
		for reason, n := range excepted {
			t.Logf("%d steps excepted: %s", n, reason)
		}
		t.Logf("%d of %d steps equal", played, len(steps))
	})
}

// requestWithoutToken reports whether none of the headers of a step is a token for an API.
func requestWithoutToken(s recordedStep) bool {
	bearer := strings.HasPrefix(strings.ToLower(s.Headers["Authorization"]), "bearer ")
	return s.Headers["X-Nomad-Token"] == "" && !bearer
}

func isNumber(x any) bool { _, ok := x.(float64); return ok }

// textMatches compares a text with a recorded one, in which placeholders stand for values.
func (p *storyPlayer) textMatches(got, want string) bool {
	pattern := "^"
	for {
		at := placeholder.FindStringIndex(want)
		if at == nil {
			break
		}
		pattern += regexp.QuoteMeta(want[:at[0]]) + ".*"
		want = want[at[1]:]
	}
	return regexp.MustCompile(pattern + regexp.QuoteMeta(want) + "$").MatchString(got)
}

// prepare does what the recording does without a line of its own.
func (p *storyPlayer) prepare(t *testing.T, s recordedStep) {
	t.Helper()
	create := func(placeholder, body string) {
		var token struct{ AccessorID, SecretID string }
		p.mustDecode(t, p.sendAs(p.management, "PUT", "/v1/acl/token", body), &token)
		p.values["<secret:"+placeholder+">"], p.values["<accessor:"+placeholder+">"] = token.SecretID, token.AccessorID
	}
	switch {
	case s.Story == "bootstrap" && strings.HasPrefix(s.Note, "file"):
		content := strings.TrimPrefix(s.Note, "file with ")
		if s.Step == "reset file with a wrong index" {
			content = "1"
		} else if strings.Contains(s.Step, "the index that the refusal named") {
			content = fmt.Sprintf("%d\n", p.store.Snapshot().ACLBootstrapIndex())
		}
		if err := os.WriteFile(p.resetFile, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	case s.Step == "reset with a secret of the operator":
		if err := os.WriteFile(p.resetFile, fmt.Append(nil, p.store.Snapshot().ACLBootstrapIndex()), 0o600); err != nil {
			t.Fatal(err)
		}
	case s.Story == "delete" && s.Step == "works before":
		create("deleted", `{"Type": "client", "Policies": ["reader"]}`)
	case s.Step == "a management token deletes itself":
		create("manager", `{"Type": "management"}`)
	case s.Story == "expiry" && s.Step == "created":
		create("short", `{"Name": "e", "Type": "client", "Policies": ["reader"], "ExpirationTTL": "2s"}`)
	case s.Story == "expiry" && s.Step == "after" && s.Path == "/v1/jobs":
		time.Sleep(2 * time.Second)
	case s.Step == "for a client token":
		p.values["<secret:reader>"] = p.values["<id:8>"]
	case s.Step == "a token with a role by name":
		create("role", `{"Name": "role token", "Type": "client", "Roles": [{"Name": "readers"}]}`)
	case strings.HasPrefix(s.Story, "a policy") && s.Step == "use before":
		p.putPolicy(t, "doomed", "namespace \"default\" {\n  policy = \"read\"\n}\n")
		create("doomed", `{"Name": "doomed token", "Type": "client", "Policies": ["doomed"]}`)
		var role struct{ ID string }
		p.mustDecode(t, p.sendAs(p.management, "PUT", "/v1/acl/role", `{"Name": "doomed-role", "Policies": [{"Name": "doomed"}]}`), &role)
		p.values["<role:doomed>"] = role.ID
	case strings.HasPrefix(s.Story, "anonymous") && s.Step == "create":
		create("other", `{"Name": "agent", "Type": "client", "Policies": ["absent-policy"]}`)
	}
	// The recording renames the role back before it makes tokens with it.
	if s.Story == "roles" && s.Step == "update an absent one" {
		id := p.values["<id:52>"]
		if r := p.sendAs(p.management, "PUT", "/v1/acl/role/"+id, fmt.Sprintf(`{"ID": %q, "Name": "readers", "Policies": [{"Name": "reader"}]}`, id)); r.StatusCode != 200 {
			t.Fatal(bodyText(r))
		}
	}
}

// play sends a step's request.
func (p *storyPlayer) play(s recordedStep) (code int, got any, raw string) {
	target := p.fill(s.Path)
	query := url.Values{}
	for name, value := range s.Query {
		query.Set(name, p.fill(value))
	}
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	body := ""
	switch b := s.Body.(type) {
	case nil:
	case string:
		body = b
	default:
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false) // placeholders have angle brackets
		_ = encoder.Encode(b)
		body = p.fill(text.String())
	}
	token := "management"
	if s.Token != nil {
		token = *s.Token
	}
	switch token {
	case "management":
		token = p.management
	case "unknown":
		token = unknownSecret
	case "other":
		token = p.values["<secret:other>"]
	case "none", "in the query", "see headers":
		token = ""
	default:
		token = p.fill(token)
	}
	header := []string{}
	if token != "" {
		header = append(header, "X-Nomad-Token", token)
	}
	for k, v := range s.Headers {
		header = append(header, k, strings.TrimSpace(p.fill(v))) // a server does not see the spaces
	}
	r := p.send(s.Method, target, strings.NewReader(body), header...)
	raw = bodyText(r)
	_ = json.Unmarshal([]byte(raw), &got)
	return r.StatusCode, got, raw
}
