package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func (f *fixture) createLoginSecret(t *testing.T) string {
	t.Helper()
	var made loginSecretReply
	if err := json.NewDecoder(f.send("POST", "/v1/agent/login/secret", nil, "X-Nomad-Token", "operator").Body).Decode(&made); err != nil {
		t.Fatal(err)
	}
	return made.Secret
}

// logIn returns the status and the body of an exchange.
func (f *fixture) logIn(secret string) (int, string) {
	r := f.send("POST", "/v1/agent/login", nil, "X-Nomad-Token", secret)
	return r.StatusCode, bodyText(r)
}

func TestLoginSecretIsValidOnceForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := readOnlyFixture(t)
		secret, late := f.createLoginSecret(t), f.createLoginSecret(t)
		if len(secret) < 20 || secret == late {
			t.Errorf("secrets %q, %q", secret, late)
		}
		if code, text := f.logIn(secret); code != 200 || text != `{"Token":"operator"}` {
			t.Errorf("login: %d %s", code, text)
		}
		if code, _ := f.logIn(secret); code != 403 {
			t.Errorf("second login: %d", code)
		}
		if r := f.send("GET", "/v1/jobs", nil, "X-Nomad-Token", late); r.StatusCode != 403 {
			t.Errorf("another route with the secret: %d", r.StatusCode)
		}
		time.Sleep(time.Minute)
		if code, _ := f.logIn(late); code != 403 {
			t.Errorf("login after a minute: %d", code)
		}
	})
}

func TestLoginSecretNeedsTheToken(t *testing.T) {
	f := readOnlyFixture(t)
	for _, token := range []string{"", "reader", "wrong"} {
		if r := f.send("POST", "/v1/agent/login/secret", nil, "X-Nomad-Token", token); r.StatusCode != 403 {
			t.Errorf("secret for token %q: %d", token, r.StatusCode)
		}
		if code, _ := f.logIn(token); code != 403 {
			t.Errorf("login with %q: %d", token, code)
		}
	}
	free := newFixture(t, nil)
	r := free.send("POST", "/v1/agent/login/secret", nil)
	if text := bodyText(r); r.StatusCode != 200 || !strings.Contains(text, `"Secret":""`) {
		t.Errorf("without a token: %d %s", r.StatusCode, text)
	}
	if code, _ := free.logIn(""); code != 403 {
		t.Errorf("login without a token: %d", code)
	}
}

func TestOldestLoginSecretIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := readOnlyFixture(t)
		oldest := f.createLoginSecret(t)
		time.Sleep(time.Second)
		second := f.createLoginSecret(t)
		for range maxLoginSecrets - 1 {
			time.Sleep(time.Millisecond)
			f.createLoginSecret(t)
		}
		if code, _ := f.logIn(oldest); code != 403 {
			t.Errorf("the oldest secret: %d", code)
		}
		if code, _ := f.logIn(second); code != 200 {
			t.Errorf("the second secret: %d", code)
		}
	})
}
