package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// The part of the NBD protocol that QEMU needs: fixed newstyle negotiation, simple replies, read, write, flush. See
// https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md. FUA, trim and write-zeroes are not offered; QEMU makes
// writes and flushes of them.
const (
	nbdMagic      = 0x4e42444d41474943 // "NBDMAGIC"
	nbdOption     = 0x49484156454f5054 // "IHAVEOPT"
	nbdOptReply   = 0x3e889045565a9
	nbdRequest    = 0x25609513
	nbdReply      = 0x67446698
	nbdNewstyle   = 1 << 0 // NBD_FLAG_FIXED_NEWSTYLE
	nbdHasFlags   = 1 << 0
	nbdSendsFlush = 1 << 2

	nbdOptAbort, nbdOptGo              = 2, 7
	nbdAck, nbdInfo                    = 1, 3
	nbdUnsupported, nbdUnknown         = 1<<31 | 1, 1<<31 | 6
	nbdInfoExport                      = 0
	nbdRead, nbdWrite, nbdDisc         = 0, 1, 2
	nbdFlush                           = 3
	nbdEIO, nbdEINVAL                  = 5, 22
	nbdMaxOption, nbdMaxRequest        = 64 << 10, 64 << 20
	nbdAllFlags                 uint16 = nbdHasFlags | nbdSendsFlush
)

// serve answers all connexions to the listener until it is closed.
func (r *Rack) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go r.attend(c)
	}
}

// attend answers one connexion. After a cut it says nothing more, and leaves it open: to the machine its disk is silent.
func (r *Rack) attend(c net.Conn) {
	in := bufio.NewReaderSize(c, 1<<20)
	d, err := r.negotiate(in, c)
	for err == nil {
		err = r.answer(d, in, c)
	}
	if !errors.Is(err, errCut) {
		_ = c.Close()
	}
}

// send writes the values in network byte order, in one go.
func send(w io.Writer, values ...any) error {
	var out []byte
	for _, v := range values {
		var err error
		if out, err = binary.Append(out, binary.BigEndian, v); err != nil {
			return err
		}
	}
	_, err := w.Write(out)
	return err
}

// receive reads the values in network byte order.
func receive(r io.Reader, values ...any) error {
	for _, v := range values {
		if err := binary.Read(r, binary.BigEndian, v); err != nil {
			return err
		}
	}
	return nil
}

func (r *Rack) negotiate(in io.Reader, out io.Writer) (*Disk, error) {
	var flags uint32
	if err := errors.Join(send(out, uint64(nbdMagic), uint64(nbdOption), uint16(nbdNewstyle)), receive(in, &flags)); err != nil {
		return nil, err
	}
	for {
		var magic uint64
		var option, length uint32
		if err := receive(in, &magic, &option, &length); err != nil {
			return nil, err
		}
		if magic != nbdOption || length > nbdMaxOption {
			return nil, errors.New("not an NBD option")
		}
		data := make([]byte, length)
		if _, err := io.ReadFull(in, data); err != nil {
			return nil, err
		}
		reply := func(kind uint32, data []byte) error {
			return send(out, uint64(nbdOptReply), option, kind, uint32(len(data)), data)
		}
		switch option {
		case nbdOptAbort:
			return nil, io.EOF
		case nbdOptGo:
			d, err := r.export(data)
			if err != nil {
				return nil, errors.Join(err, reply(nbdUnknown, nil))
			}
			info, err := binary.Append(nil, binary.BigEndian, struct {
				Kind  uint16
				Size  uint64
				Flags uint16
			}{nbdInfoExport, uint64(d.size), nbdAllFlags})
			return d, errors.Join(err, reply(nbdInfo, info), reply(nbdAck, nil))
		default:
			if err := reply(nbdUnsupported, nil); err != nil {
				return nil, err
			}
		}
	}
}

// export finds the disk that NBD_OPT_GO names.
func (r *Rack) export(data []byte) (*Disk, error) {
	if len(data) < 4 || int(binary.BigEndian.Uint32(data)) > len(data)-4 {
		return nil, errors.New("not an NBD_OPT_GO")
	}
	name := string(data[4 : 4+binary.BigEndian.Uint32(data)])
	d, ok := r.disks[name]
	if !ok {
		return nil, fmt.Errorf("no disk %q", name)
	}
	return d, nil
}

// answer carries out one request.
func (r *Rack) answer(d *Disk, in io.Reader, out io.Writer) error {
	var magic, length uint32
	var flags, kind uint16
	var cookie, at uint64
	if err := receive(in, &magic, &flags, &kind, &cookie, &at, &length); err != nil {
		return err
	}
	if magic != nbdRequest || length > nbdMaxRequest {
		return errors.New("not an NBD request")
	}
	data := make([]byte, length)
	if kind == nbdWrite {
		if _, err := io.ReadFull(in, data); err != nil {
			return err
		}
	}
	var err error
	code := uint32(0)
	switch {
	case kind == nbdDisc:
		return io.EOF
	case kind > nbdFlush || at+uint64(length) > uint64(d.size):
		code = nbdEINVAL
	case kind == nbdRead:
		err = r.read(d, int64(at), data)
	case kind == nbdWrite:
		err = r.write(d, int64(at), data)
	case kind == nbdFlush:
		err = r.flush(d)
	}
	if errors.Is(err, errCut) {
		return err
	}
	if err != nil {
		code = nbdEIO
	}
	if kind != nbdRead || code != 0 {
		data = nil
	}
	return send(out, uint32(nbdReply), code, cookie, data)
}
