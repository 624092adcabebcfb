package systemd

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		`a "b c" 'd e'`:        {"a", "b c", "d e"},
		`A="b c" x`:            {"A=b c", "x"},
		`"it's" '"'`:           {"it's", `"`},
		`tab\tx \x41\u00e9 \s`: {"tab\tx", "Aé", " "},
		`\101 back\\`:          {"A", `back\`},
		`""`:                   {""},
		`\d`:                   {`\d`},
	} {
		got, err := splitWords(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`"a`, `a\`, `\xZZ`, `\U00110000`} {
		if got, err := splitWords(text); err == nil {
			t.Errorf("%s: got %q, want an error", text, got)
		}
	}
}

func TestParseCommands(t *testing.T) {
	commands, err := parseCommands(`-@/bin/sh name -c x ; :+/bin/echo a\;b \; c ;`)
	if err != nil || len(commands) != 2 {
		t.Fatalf("got %v %v", commands, err)
	}
	if c := commands[0]; !c.ignoreFailure || c.arg0 != "name" || !slices.Equal(c.words, []string{"/bin/sh", "-c", "x"}) {
		t.Errorf("first command: got %+v", c)
	}
	if c := commands[1]; !c.literal || c.privileged != "+" || !slices.Equal(c.words, []string{"/bin/echo", "a;b", ";", "c"}) {
		t.Errorf("second command: got %+v", c)
	}
}

func TestExpandVariables(t *testing.T) {
	env := map[string]string{"A": "1", "LIST": `x "y z"`}
	var missing []string
	got := expandVariables([]string{"$A", "$LIST", "${LIST}", "a$A", "a${A}b", "$$A", "$", "$NONE", "${NONE}"}, func(name string) string {
		if _, ok := env[name]; !ok {
			missing = append(missing, name)
		}
		return env[name]
	})
	if want := []string{"$A", "x", "y z", `x "y z"`, "a$A", "a1b", "$A", "$", ""}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !slices.Equal(missing, []string{"NONE", "NONE"}) {
		t.Errorf("missing: got %q", missing)
	}
}

func TestParseEnvironmentFile(t *testing.T) {
	_, got := parseEnvironmentFile("# c\n; c\nA=1\nB = 'a b' \nC=\"x \\\" \\n\"\nD=a\\\nb\nE=$A\nno\n9=x\nF='two\nlines'\n")
	want := map[string]string{"A": "1", "B": "a b", "C": `x " \n`, "D": "ab", "E": "$A", "F": "two\nlines"}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSpecifiers(t *testing.T) {
	u := &unit{name: `app-web@srv-a\x20b.service`, stem: `app-web@srv-a\x20b`, prefix: "app-web", instance: `srv-a\x20b`}
	got, err := specifiers{unit: u}.expand("%n %N %p %P %j %i %I %f %t %u %h %% 100%")
	want := `app-web@srv-a\x20b.service app-web@srv-a\x20b app-web app/web web srv-a\x20b srv/a b /srv/a b /run root /root % 100%`
	if got != want || err != nil {
		t.Errorf("got %q %v, want %q", got, err, want)
	}
	if _, err := (specifiers{unit: u}).expand("%H"); err == nil || !strings.Contains(err.Error(), "%H") {
		t.Errorf("got %v, want an error about %%H", err)
	}
}

func TestSignalOfKill(t *testing.T) {
	for text, want := range map[string]string{
		"/bin/kill -s QUIT $MAINPID": "SIGQUIT", "kill -HUP ${MAINPID}": "SIGHUP", "kill -9 $MAINPID": "SIGKILL", "/bin/kill $MAINPID": "SIGTERM", "kill -SIGINT $MAINPID": "SIGINT",
	} {
		if got, ok := signalOfKill(strings.Fields(text)); got != want || !ok {
			t.Errorf("%s: got %q %v, want %q", text, got, ok, want)
		}
	}
	for _, text := range []string{"kill", "killall x", "kill -9 1", "kill -s A -s B $MAINPID"} {
		if got, ok := signalOfKill(strings.Fields(text)); ok {
			t.Errorf("%s: got %q", text, got)
		}
	}
}
