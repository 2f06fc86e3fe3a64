package object

// ReadFooterAndIndex checks tail, the last bytes of an object of the given size
// whose header is header, as far as they reach. When the index begins before
// tail does, it returns need > 0: how many of the object's last bytes to fetch
// before calling again.
func ReadFooterAndIndex(header, tail []byte, size int64) (f Footer, x *Index, need int64, err error) {
	if f, err = ParseFooter(tail, size); err != nil {
		return f, nil, 0, err
	}
	if got := HeaderCRC(header); got != f.HeaderCRC {
		return f, nil, 0, corrupt("footer: belongs to a header with crc32c %08x, found %08x", f.HeaderCRC, got)
	}
	n := f.IndexLen + FooterLen
	if int64(len(tail)) < n {
		return f, nil, n, nil
	}
	at := int64(len(tail)) - n
	if x, err = ParseIndexOf(tail[at:at+f.IndexLen], f.IndexPos, f.IndexCRC); err != nil {
		return f, nil, 0, err
	}
	if len(x.Blocks) != int(f.Blocks) || len(x.Checkpoints) != int(f.Checkpoints) {
		return f, nil, 0, corrupt("footer: %d blocks and %d checkpoints, the index has %d and %d",
			f.Blocks, f.Checkpoints, len(x.Blocks), len(x.Checkpoints))
	}
	return f, x, 0, nil
}

// Verify checks a whole object (not a tombstone), every block and checkpoint of
// it, and returns what it is.
func Verify(b []byte) (Header, *Index, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return h, nil, err
	}
	_, x, need, err := ReadFooterAndIndex(b[:HeaderLen], b, int64(len(b)))
	if err != nil {
		return h, nil, err
	}
	if need > 0 {
		return h, nil, corrupt("footer: an index of %d bytes in an object of %d", need-FooterLen, len(b))
	}
	var frames []Frame
	for _, i := range x.Blocks {
		if frames, err = AppendFrames(frames[:0], i, b[i.Pos:i.Pos+i.Len()]); err != nil {
			return h, nil, err
		}
	}
	for _, c := range x.Checkpoints {
		if _, err = DecodeCheckpoint(c, b[c.Pos:c.Pos+int64(c.Len)]); err != nil {
			return h, nil, err
		}
	}
	return h, x, nil
}
