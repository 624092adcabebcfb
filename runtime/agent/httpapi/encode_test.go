package httpapi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestEncode(t *testing.T) {
	type innerStruct struct{ B, A int }
	type embeddingStruct struct {
		Z string
		embeddedInner
	}
	for _, c := range []struct {
		name  string
		value any
		want  string
	}{
		{"names are sorted", innerStruct{1, 2}, `{"A":2,"B":1}`},
		{"an embedded struct is part of its owner", embeddingStruct{"z", embeddedInner{3}}, `{"Y":3,"Z":"z"}`},
		{"nothing is null", nil, `null`},
		{"a nil list is null, an empty one is not", []any{[]string(nil), []string{}}, `[null,[]]`},
		{"a nil map is null, an empty one is not", []any{map[string]int(nil), map[string]int{}}, `[null,{}]`},
		{"a time that is not set is null", time.Time{}, `null`},
		{"a time is in UTC", time.Date(2024, 1, 2, 3, 4, 5, 600, time.FixedZone("", 3600)), `"2024-01-02T02:04:05.0000006Z"`},
		{"a duration is a number", time.Second, `1000000000`},
		{"a whole float has a point", []float64{1, 0.5, 1e300}, `[1.0,0.5,1e+300]`},
		{"nothing is escaped for HTML", "<a & b>", `"<a & b>"`},
		{"what must be escaped is", "\"\\\n\x01\xff\u2028", `"\"\\\n\u0001\ufffd\u2028"`},
		{"bytes are base64", []byte("hi"), `"aGk="`},
		{"an evaluation drops what is empty", api.Evaluation{ID: "e"}, `{"ID":"e"}`},
		{"a job keeps it", api.PeriodicConfig{}, `{"Enabled":null,"ProhibitOverlap":null,"Spec":null,"SpecType":null,"Specs":null,"TimeZone":null}`},
		{"a server has other names", api.JobUILink{}, `{"Label":"","Url":""}`},
		{"numbers of resources are filled", api.Resources{CPU: new(1)},
			`{"CPU":1,"Cores":0,"Devices":null,"DiskMB":0,"IOPS":0,"MemoryMB":0,"MemoryMaxMB":0,"NUMA":null,"Networks":null,"SecretsMB":0}`},
		{"and fewer", api.LogConfig{}, `{"Disabled":null,"MaxFileSizeMB":null,"MaxFiles":null}`},
		{"a tag decides too", api.AllocationListStub{}.AllocatedResources, `null`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := encodeNomadJSON(c.value)
			if err != nil || string(got) != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
			if !json.Valid(got) {
				t.Errorf("%s is not JSON", got)
			}
		})
	}
	if _, err := encodeNomadJSON(func() {}); err == nil {
		t.Error("a function is no error")
	}
}

type embeddedInner struct{ Y int }

// FuzzEncode encodes any JSON value, and decodes the result.
func FuzzEncode(f *testing.F) {
	f.Add(`{"a": [1, "x\u2028", null, true, {"b": 1.5}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var decodedValue any
		if json.Unmarshal([]byte(text), &decodedValue) != nil {
			return
		}
		got, err := encodeNomadJSON(decodedValue)
		if err != nil {
			return // nested too deep
		}
		var decodedAgain any
		if err := json.Unmarshal(got, &decodedAgain); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		a, _ := json.Marshal(decodedValue)
		b, _ := json.Marshal(decodedAgain)
		if string(a) != string(b) {
			t.Errorf("%s became %s", a, b)
		}
	})
}
