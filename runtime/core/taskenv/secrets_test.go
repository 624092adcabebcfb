package taskenv

import (
	"testing"

	"github.com/zclconf/go-cty/cty"
)

func secretsBuilder() *Builder {
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app", EnvBlock: map[string]string{
		"USER": "${secret.db.user}", "URL": "db://${USER}@host", "NONE": "${secret.db.none}",
	}})
	b.SetSecrets(map[string]string{"secret.db.user": "alice", "secret.db.a key": "two\nlines", "secret.db.empty": ""})
	return b
}

func TestSecretsReplaceReferences(t *testing.T) {
	b := secretsBuilder()
	expectVars(t, b.Build(), map[string]string{
		"USER": "alice", "URL": "db://alice@host", "NONE": "${secret.db.none}", "secret.db.user": "-",
	})
	if got := b.Build().ReplaceReferences("<${secret.db.user}>"); got != "<alice>" {
		t.Errorf("replaced: %q", got)
	}
	if got := b.Build().TaskConfigHCLVars()["secret"].GetAttr("db").GetAttr("a key"); !got.RawEquals(cty.StringVal("two\nlines")) {
		t.Errorf("config: %#v", got)
	}
	b.SetSecrets(map[string]string{"secret.db.user": "bob"})
	expectVars(t, b.Build(), map[string]string{"USER": "bob"})
}

func TestFirstMissingSecretReference(t *testing.T) {
	env := secretsBuilder().Build()
	for text, want := range map[string]string{
		"${secret.db.user} ${secret.db.empty}":   "",
		"${secret.db.user} ${secret.db.nope} x":  "secret.db.nope",
		"${secret.other.user}":                   "secret.other.user",
		"${secrets.db.nope} ${nothing} secret.a": "",
	} {
		if got := env.FirstMissingSecretReference(text); got != want {
			t.Errorf("%q: missing %q, want %q", text, got, want)
		}
	}
}
