package callstats

import "time"

// Method counts the calls of one method of a plugin process.
type Method struct {
	Method     string // without the service, such as "StartTask"
	Calls      int    // completed calls
	Errors     int    // completed calls that returned an error, except cancelled calls
	InProgress int
	Total      time.Duration // of completed calls
	Max        time.Duration // longest completed call
}
