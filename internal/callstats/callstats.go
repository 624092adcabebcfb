package callstats

import "time"

// Method has the number and the duration of the calls of one method of a plugin process.
type Method struct {
	Method     string        // name of the method without the service, such as "StartTask"
	Calls      int           // completed calls
	Errors     int           // completed calls that returned an error, except cancelled calls
	InProgress int           // calls that have not returned
	Total      time.Duration // sum of the durations of completed calls
	Max        time.Duration // duration of the longest completed call
}
