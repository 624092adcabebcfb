package store

import (
	"bytes"
	"cmp"
	"errors"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// allocationDecoder decodes allocation records. Most of a record's fields have the same bytes as in another allocation of its
// group: they are decoded once, and the allocations share their values. The zero value is ready to use, by one goroutine.
type allocationDecoder struct {
	record, allocation, taskState sharingDecoder

	taskNames         map[string]string
	eventsWithoutTime map[string]*api.TaskEvent // an event's encoding without its time -> the event with Time 0
	encodedEvent      []byte                    // decodeEvent's buffer
	lastEvents        []eventsOfTask
	newEvents         []eventsOfTask // decodeTaskStates' buffer
}

// errUnexpectedField: a record has a field that its type lacks, or a field with another type.
var errUnexpectedField = errors.New("record has an unexpected field")

// decodeKnownFields decodes a record into r, which must be zero, and returns its task events, which r then lacks. It fails if
// the record has an unexpected field: decodeAndListUnknownFields decodes such a record.
func (d *allocationDecoder) decodeKnownFields(payload []byte, r *allocationRecord) (taskEvents, error) {
	var decoded allocationRecord
	var events taskEvents
	encodedAlloc, err := d.record.decodeExcept("alloc", payload, reflect.ValueOf(&decoded).Elem())
	if err != nil {
		return taskEvents{}, err
	}
	if encodedAlloc != nil {
		decoded.Alloc = new(api.Allocation)
		encodedStates, err := d.allocation.decodeExcept("TaskStates", encodedAlloc, reflect.ValueOf(decoded.Alloc).Elem())
		if err == nil && encodedStates != nil {
			decoded.Alloc.TaskStates, events, err = d.decodeTaskStates(encodedStates)
		}
		if err != nil {
			return taskEvents{}, err
		}
	}
	*r = decoded
	return events, nil
}

// decodeTaskStates returns an allocation's task states without their events, and the events.
func (d *allocationDecoder) decodeTaskStates(encoded []byte) (map[string]*api.TaskState, taskEvents, error) {
	var times []int64
	d.newEvents = d.newEvents[:0]
	r := valueReader{rest: encoded}
	size := r.mapSize()
	states := make(map[string]*api.TaskState, min(size, 8))
	for range size {
		task, encodedState := d.taskName(r.nextString()), r.next()
		if r.err != nil {
			break
		}
		if isEncodedNil(encodedState) {
			states[task] = nil
			continue
		}
		state := new(api.TaskState)
		states[task] = state
		encodedEvents, err := d.taskState.decodeExcept("Events", encodedState, reflect.ValueOf(state).Elem())
		if err != nil {
			return nil, taskEvents{}, err
		}
		if encodedEvents != nil {
			ofTask := eventsOfTask{task: task}
			if ofTask.withoutTime, times, err = d.decodeEvents(encodedEvents, times); err != nil {
				return nil, taskEvents{}, err
			}
			d.newEvents = append(d.newEvents, ofTask)
		}
	}
	if !slices.EqualFunc(d.newEvents, d.lastEvents, eventsOfTask.isSame) {
		d.lastEvents = slices.Clone(d.newEvents)
	}
	return states, taskEvents{d.lastEvents, times}, r.err
}

func (d *allocationDecoder) taskName(encoded []byte) string {
	name, ok := d.taskNames[string(encoded)]
	if !ok {
		if d.taskNames == nil {
			d.taskNames = make(map[string]string)
		}
		name = string(encoded)
		d.taskNames[name] = name
	}
	return name
}

// decodeEvents returns a task's events without their times, and times with these appended.
func (d *allocationDecoder) decodeEvents(encoded []byte, times []int64) ([]*api.TaskEvent, []int64, error) {
	r := valueReader{rest: encoded}
	events := make([]*api.TaskEvent, r.listSize())
	times = slices.Grow(times, len(events))
	for i := range events {
		encodedEvent := r.next()
		if r.err != nil {
			break
		}
		if isEncodedNil(encodedEvent) {
			continue
		}
		event, time, err := d.decodeEvent(encodedEvent)
		if err != nil {
			return nil, nil, err
		}
		events[i], times = event, append(times, time)
	}
	return events, times, r.err
}

func (d *allocationDecoder) decodeEvent(encoded []byte) (withoutTime *api.TaskEvent, time int64, err error) {
	r := valueReader{rest: encoded}
	d.encodedEvent = append(d.encodedEvent[:0], encoded...)
	for range r.mapSize() {
		start := len(encoded) - len(r.rest)
		if name, value := r.nextString(), r.next(); string(name) == "Time" {
			var ok bool
			if time, ok = intContent(value); !ok {
				return nil, 0, errUnexpectedField
			}
			d.encodedEvent = append(d.encodedEvent[:start], r.rest...)
			break
		}
	}
	if known := d.eventsWithoutTime[string(d.encodedEvent)]; known != nil {
		return known, time, r.err
	}
	withoutTime = new(api.TaskEvent)
	if err := decodeMsgpackWith(&strictDecoders, encoded, withoutTime); err != nil {
		return nil, 0, err
	}
	withoutTime.Time = 0
	if d.eventsWithoutTime == nil || len(d.eventsWithoutTime) == maxSharedFieldValues {
		d.eventsWithoutTime = make(map[string]*api.TaskEvent)
	}
	d.eventsWithoutTime[string(d.encodedEvent)] = withoutTime
	return withoutTime, time, nil
}

// sharingDecoder decodes structs of one type. Equal encoded fields get the same value.
type sharingDecoder struct {
	fieldByName map[string]*sharedField
	lastOrder   []*sharedField // the last struct's fields
}

// maxSharedFieldValues is how many values a sharedField keeps at most, and how many events an allocationDecoder.
const maxSharedFieldValues = 64

type sharedField struct {
	name            string
	index           []int  // the field's index in the struct
	lastPair        []byte // the last encoded name and value
	lastValue       reflect.Value
	valueByEncoding map[string]reflect.Value // only for types with memory to share
}

// decodeExcept decodes a struct into v, which must be zero. It returns the encoded value of the field named in undecoded, which
// shares encoded's memory; nil if the struct lacks the field, or if it is nil.
func (d *sharingDecoder) decodeExcept(undecoded string, encoded []byte, v reflect.Value) (undecodedValue []byte, err error) {
	if d.fieldByName == nil {
		d.fieldByName = make(map[string]*sharedField)
		for _, f := range storedFields(v.Type()) {
			d.fieldByName[f.storedName] = &sharedField{name: f.storedName, index: f.fieldIndex, lastValue: reflect.New(f.goType).Elem()}
		}
	}
	r := valueReader{rest: encoded}
	for i := range r.mapSize() {
		if i == len(d.lastOrder) {
			d.lastOrder = append(d.lastOrder, &sharedField{})
		}
		f := d.lastOrder[i]
		if len(f.lastPair) > 0 && bytes.HasPrefix(r.rest, f.lastPair) { // an encoded value is not the prefix of another
			r.rest = r.rest[len(f.lastPair):]
			if !f.lastValue.IsZero() {
				v.FieldByIndex(f.index).Set(f.lastValue)
			}
			continue
		}
		pair := r.rest
		name, value := r.nextString(), r.next()
		if f = d.fieldByName[string(name)]; r.err != nil || f == nil {
			return nil, cmp.Or(r.err, errUnexpectedField)
		}
		d.lastOrder[i] = f
		if f.name == undecoded {
			if !isEncodedNil(value) {
				undecodedValue = value
			}
			continue
		}
		if err := f.decode(value, v.FieldByIndex(f.index)); err != nil {
			return nil, err
		}
		f.lastPair = append(f.lastPair[:0], pair[:len(pair)-len(r.rest)]...)
		f.lastValue.Set(v.FieldByIndex(f.index))
	}
	return undecodedValue, r.err
}

// decode decodes the field into v, which must be zero.
func (f *sharedField) decode(encoded []byte, v reflect.Value) error {
	if isEncodedNil(encoded) {
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		text, ok := stringContent(encoded)
		if !ok {
			return errUnexpectedField
		}
		v.SetString(string(text))
		return nil
	case reflect.Pointer, reflect.Map, reflect.Slice:
	default:
		return decodeMsgpackWith(&strictDecoders, encoded, v.Addr().Interface())
	}
	if known, ok := f.valueByEncoding[string(encoded)]; ok {
		v.Set(known)
		return nil
	}
	if err := decodeMsgpackWith(&strictDecoders, encoded, v.Addr().Interface()); err != nil {
		return err
	}
	if f.valueByEncoding == nil || len(f.valueByEncoding) == maxSharedFieldValues {
		f.valueByEncoding = make(map[string]reflect.Value)
	}
	f.valueByEncoding[string(encoded)] = reflect.ValueOf(v.Interface())
	return nil
}
