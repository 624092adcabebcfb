package docpage

import "testing"

func TestReplacePart(t *testing.T) {
	const begin, end = beginMarker, endMarker
	for page, want := range map[string]string{
		"a\n" + begin + "old\n" + end + "b\n": "a\n" + begin + "new\n" + end + "b\n",
		begin + end:                           begin + "new\n" + end,
		"a\n" + begin + "old\n":               "",
		"a\n" + end + "b\n" + begin:           "",
		begin + end + begin + end:             "",
		"":                                    "",
	} {
		if got, ok := replacePart(page, "new\n"); ok != (want != "") || ok && got != want {
			t.Errorf("the page %q becomes %q, %v, want %q", page, got, ok, want)
		}
	}
}

func TestTable(t *testing.T) {
	table := NewTable("Name", "Text")
	if got := table.String(); got != "" {
		t.Errorf("a table without rows is %q", got)
	}
	table.AddRow(Code("a|b"), "two\n  lines")
	table.AddRow(Code(""), Code("`x`", "y"))
	table.AddRow("/job/<id> of "+Code("<id>")+" <a>", Code("`<x>`"))
	const want = "| Name | Text |\n| --- | --- |\n| `a\\|b` | two lines |\n| | `` `x` `` `y` |\n| /job/&lt;id> of `<id>` &lt;a> | `` `<x>` `` |\n"
	if got := table.String(); got != want {
		t.Errorf("the table is\n%s, want\n%s", got, want)
	}
}
