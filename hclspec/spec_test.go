package hclspec

// fullSpec uses each kind of spec with each of its fields.
var fullSpec = Object(map[string]*Spec{
	"attr":  Attr("attr", "string", true),
	"array": Array(Attr("a", "string", false), Literal("1")),
	"block": Block("block", Object(nil), true),
	"attrs": BlockAttrs("attrs", "number", true),
	"list":  BlockList("list", Attr("b", "bool", false), 1, 2),
	"set":   BlockSet("set", Attr("c", "bool", false), 3, 4),
	"map":   BlockMap("map", []string{"one", "two"}, Attr("d", "bool", false)),
	"def":   Default(Attr("e", "string", false), Literal(`"x"`)),
})
