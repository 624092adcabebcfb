package logsearch

import (
	"math"
	"slices"
	"sort"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
)

const (
	maxTimesBytes  = 16 << 20 // bytes read from an arrival time file, which a task can replace
	maxTimesBlocks = 256      // blocks in an index
	minTimesBlock  = 1 << 10  // bytes in a block
	timesReadSize  = 32 << 10 // bytes per read
	beforeAllTimes = math.MinInt64
	afterAllTimes  = math.MaxInt64
	afterAllOutput = math.MaxInt64
)

// arrivalRecord is the arrival time for the output from an offset on.
type arrivalRecord struct {
	offset       int64
	milliseconds int64 // since 1970
}

// timesIndex finds the arrival times for parts of a log file without having all in memory. An index block is a part of the
// arrival time file.
//
// An index's times never decrease from line to line: if the clock was set back, output has the lowest time among the output after
// it. So each time is one place in the file, which is the same for readers in both directions.
type timesIndex struct {
	blocks []timesBlock
}

type timesBlock struct {
	start, end   int64 // bytes in the arrival time file
	decoder      logfile.ArrivalTimeDecoder
	firstOffset  int64 // from the first record
	endOffset    int64 // records from this offset on do not apply, because the log file was truncated
	lowestMillis int64 // among the block's records
	laterMillis  int64 // lowest time in all later blocks
}

// firstMillis returns the first record's time, which does not exceed any later one.
func (b *timesBlock) firstMillis() int64 { return min(b.lowestMillis, b.laterMillis) }

// timesReader reads a part of an arrival time file into p, and returns how many bytes it has read; fewer than len(p) means end of
// file.
type timesReader func(p []byte, offset int64) (n int, err error)

// newTimesIndex reads an arrival time file with the given size.
func newTimesIndex(size int64, read timesReader) (*timesIndex, error) {
	size = min(size, maxTimesBytes)
	blockSize := max(minTimesBlock, size/(maxTimesBlocks/2))
	x := &timesIndex{}
	lastOffset := int64(-1)
	err := decodeTimes(0, size, logfile.ArrivalTimeDecoder{}, read, func(at logfile.ArrivalTime, start, end int64, before logfile.ArrivalTimeDecoder) {
		x.add(at, start, end, before, at.Offset <= lastOffset, blockSize)
		lastOffset = at.Offset
	})
	if err != nil {
		return nil, err
	}
	later := int64(afterAllTimes)
	for i := range slices.Backward(x.blocks) {
		x.blocks[i].laterMillis = later
		later = min(later, x.blocks[i].lowestMillis)
	}
	return x, nil
}

// add adds a record, which is at start in the file.
func (x *timesIndex) add(at logfile.ArrivalTime, start, end int64, before logfile.ArrivalTimeDecoder, isTruncation bool, blockSize int64) {
	if isTruncation {
		for len(x.blocks) > 1 && x.blocks[len(x.blocks)-1].firstOffset >= at.Offset {
			x.blocks = x.blocks[:len(x.blocks)-1]
		}
	}
	milliseconds := at.Time.UnixMilli()
	n := len(x.blocks)
	if n == 0 || n < maxTimesBlocks && (isTruncation || start-x.blocks[n-1].start >= blockSize) {
		if n > 0 {
			x.blocks[n-1].endOffset = min(x.blocks[n-1].endOffset, at.Offset)
		}
		x.blocks = append(x.blocks, timesBlock{start: start, decoder: before, firstOffset: at.Offset, endOffset: afterAllOutput, lowestMillis: milliseconds})
	}
	last := &x.blocks[len(x.blocks)-1]
	last.end = end
	last.lowestMillis = min(last.lowestMillis, milliseconds)
}

// decodeTimes calls emit with an arrival time file's records from start to end, each one's place in the file, and the decoder
// state before it.
func decodeTimes(start, end int64, decoder logfile.ArrivalTimeDecoder, read timesReader, emit func(at logfile.ArrivalTime, start, end int64, before logfile.ArrivalTimeDecoder)) error {
	buf := make([]byte, min(timesReadSize, end-start))
	undecoded := 0 // bytes at buf's start
	for start+int64(undecoded) < end {
		n, err := read(buf[undecoded:min(int64(len(buf)), end-start)], start+int64(undecoded))
		if err != nil {
			return err
		}
		if n == 0 {
			return nil // the file has become shorter
		}
		b := buf[:undecoded+n]
		for {
			before := decoder
			at, n, ok := decoder.Next(b)
			if n == 0 {
				break
			}
			if ok {
				emit(at, start, start+int64(n), before)
			}
			start, b = start+int64(n), b[n:]
		}
		undecoded = copy(buf, b)
	}
	return nil
}

// isEmpty reports whether no arrival times are stored for the log file.
func (x *timesIndex) isEmpty() bool { return len(x.blocks) == 0 }

// times returns the arrival times for the output between two offsets, ordered by offset. The first record applies to output
// before its offset as well. There is at least one, unless the index is empty.
func (x *timesIndex) times(from, to int64, read timesReader) ([]arrivalRecord, error) {
	if x.isEmpty() {
		return nil, nil
	}
	i := max(0, sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i].firstOffset > from })-1)
	var records []arrivalRecord
	later := int64(afterAllTimes)
	for ; i < len(x.blocks); i++ {
		b := &x.blocks[i]
		if len(records) > 0 && b.firstOffset >= to {
			break
		}
		later = b.laterMillis
		err := decodeTimes(b.start, b.end, b.decoder, read, func(at logfile.ArrivalTime, _, _ int64, _ logfile.ArrivalTimeDecoder) {
			if at.Offset >= b.endOffset {
				return
			}
			for len(records) > 0 && records[len(records)-1].offset >= at.Offset {
				records = records[:len(records)-1]
			}
			if at.Offset >= to && len(records) > 0 {
				later = min(later, at.Time.UnixMilli())
				return
			}
			if at.Offset <= from {
				records = records[:0]
			}
			records = append(records, arrivalRecord{at.Offset, at.Time.UnixMilli()})
		})
		if err != nil {
			return nil, err
		}
	}
	for i := range slices.Backward(records) {
		later = min(later, records[i].milliseconds)
		records[i].milliseconds = later
	}
	return records, nil
}

// endOfTime returns the offset of the first output with a later arrival time than the given one; for the file's last output it
// returns afterAllOutput. It returns 0 if all output is later.
func (x *timesIndex) endOfTime(milliseconds int64, read timesReader) (int64, error) {
	i := sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i].firstMillis() > milliseconds }) - 1
	if i < 0 {
		return 0, nil
	}
	b := &x.blocks[i]
	end := b.firstOffset
	isWithin := false // the last record is not later
	err := decodeTimes(b.start, b.end, b.decoder, read, func(at logfile.ArrivalTime, _, _ int64, _ logfile.ArrivalTimeDecoder) {
		switch {
		case at.Offset >= b.endOffset:
		case at.Time.UnixMilli() <= milliseconds:
			isWithin = true
		case isWithin || at.Offset < end:
			end, isWithin = at.Offset, false
		}
	})
	if isWithin {
		end = afterAllOutput
		if i+1 < len(x.blocks) {
			end = x.blocks[i+1].firstOffset
		}
	}
	return end, err
}
