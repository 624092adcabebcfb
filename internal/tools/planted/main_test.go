package main

import "testing"

func TestParse(t *testing.T) {
	defects, err := parse("a timer is not stopped\nx/a.go\n-\tt.Stop()\n-\n+\tt.Start()\n\nnothing is stored\nx/b.go\n-put()\n")
	if err != nil || len(defects) != 2 {
		t.Fatalf("%+v, %v", defects, err)
	}
	if want := (defect{"a timer is not stopped", "x/a.go", "\tt.Stop()\n\n", "\tt.Start()\n"}); defects[0] != want {
		t.Errorf("%+v, want %+v", defects[0], want)
	}
	if defects[1].after != "" {
		t.Errorf("%+v", defects[1])
	}
	for _, text := range []string{"", "a name\na.go", "a name\na.go\n x"} {
		if defects, err := parse(text); err == nil {
			t.Errorf("%q is the list %+v", text, defects)
		}
	}
}
