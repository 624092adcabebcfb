package nodeapi

import (
	"encoding/base64"
	"fmt"
	"testing"
)

func TestParseClaims(t *testing.T) {
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for _, test := range []struct{ token, want string }{
		{token(`{"nomad_node_pool":"default","exp":1795282943,"x":1.5}`), "map[exp:1795282943 nomad_node_pool:default x:1.5] <nil>"},
		{"9a30b60a-07ff-f6ce-ec36-533c48a52b97", "map[] this node has no identity that the servers have signed"},
		{"e30.!.c2ln", "map[] decode the claims of the identity: illegal base64 data at input byte 0"},
		{token(`[]`), "map[] decode the claims of the identity: json: cannot unmarshal array into Go value of type map[string]interface {}"},
	} {
		claims, err := ParseClaims(test.token)
		if got := fmt.Sprint(claims, " ", err); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
	claims, _ := ParseClaims(token(`{"exp":1795282943}`))
	if _, whole := claims["exp"].(int64); !whole {
		t.Errorf("exp is a %T", claims["exp"])
	}
}
