package mysqltest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// The parts of the client/server protocol that a multiplexer needs: where a message and a response end, the
// greeting, and the database that a login names.

// Commands: the first byte of a client's message.
const (
	commandQuit    = 0x01
	commandInitDB  = 0x02
	commandQuery   = 0x03
	commandPing    = 0x0e
	commandExecute = 0x17 // a prepared statement
)

// The first byte of a server's message.
const (
	answerOK     = 0x00
	answerInfile = 0xfb // the server asks for a file of the client
	answerEnd    = 0xfe // the end of a result's rows
	answerError  = 0xff
)

const (
	headerSize  = 4         // of a packet's header: the packet's length in three bytes, its number in one
	fullPacket  = 1<<24 - 1 // bytes; the message continues in another packet
	moreResults = 0x0008    // a server status: another result follows
	autocommit  = 0x0002    // a server status
)

// Capability flags.
const (
	connectWithDB = 1 << 3
	deprecateEOF  = 1 << 24 // a result ends with one kind of packet

	// understood has the capabilities that the multiplexer offers to clients. It leaves out TLS, compression, and those that
	// change the form of commands and responses.
	understood = 1<<0 | // long password; MariaDB does not set it
		1<<2 | // long flag
		connectWithDB |
		1<<9 | // protocol 4.1
		1<<13 | // transactions
		1<<15 | // secure connection
		1<<16 | // multiple statements
		1<<17 | // multiple results
		1<<19 | // authentication plugins
		1<<20 | // connection attributes
		1<<21 | // length of the authentication data
		deprecateEOF
)

var errProtocol = errors.New("mysqltest: the multiplexer does not know this part of the protocol")

// readMessage reads a message with its headers: a packet, or several if it is too long for one. It has at
// least one byte after the first header.
func readMessage(r io.Reader) ([]byte, error) {
	var message []byte
	for {
		start := len(message)
		message = append(message, make([]byte, headerSize)...)
		if _, err := io.ReadFull(r, message[start:]); err != nil {
			return nil, err
		}
		header := message[start:]
		length := int(header[0]) | int(header[1])<<8 | int(header[2])<<16
		message = slices.Grow(message, length)[:start+headerSize+length]
		if _, err := io.ReadFull(r, message[start+headerSize:]); err != nil {
			return nil, err
		}
		switch {
		case len(message) == headerSize:
			return nil, errProtocol
		case length < fullPacket:
			return message, nil
		}
	}
}

// packet returns a message of one packet.
func packet(number byte, payload ...byte) []byte {
	length := len(payload)
	return append([]byte{byte(length), byte(length >> 8), byte(length >> 16), number}, payload...)
}

// refusal returns the packet of a server's error with this number and SQL state.
func refusal(number uint16, state, text string) []byte {
	payload := binary.LittleEndian.AppendUint16([]byte{answerError}, number)
	return packet(1, append(payload, "#"+state+text...)...)
}

// relay forwards the response to a command, with all its results. The end of the response stays in the writer's buffer.
func relay(to *bufio.Writer, from *bufio.Reader) error {
	inRows := false
	for {
		if from.Buffered() == 0 { // the next of several statements may take long
			if err := to.Flush(); err != nil {
				return err
			}
		}
		message, err := readMessage(from)
		if err != nil {
			return err
		}
		if _, err := to.Write(message); err != nil {
			return err
		}
		switch kind := message[headerSize]; {
		case kind == answerError:
			return nil
		case kind == answerInfile && !inRows:
			return errProtocol
		case kind == answerOK && !inRows, kind == answerEnd && inRows && len(message) < fullPacket:
			if status(message)&moreResults == 0 {
				return nil
			}
			inRows = false
		default:
			inRows = true // a result's header, columns or rows
		}
	}
}

// status returns the server's status from a packet that ends a result. Affected rows and the insert id come before it.
func status(message []byte) uint16 {
	rest := message[headerSize+1:]
	for range 2 {
		size := 1
		switch rest[0] {
		case 0xfc:
			size = 3
		case 0xfd:
			size = 4
		case 0xfe:
			size = 9
		}
		rest = rest[size:]
	}
	return binary.LittleEndian.Uint16(rest)
}

// plain removes from a server's greeting the capabilities that are not in understood. Neither side uses a capability that the
// other has not offered.
func plain(greeting []byte) error {
	version := bytes.IndexByte(greeting[headerSize+1:], 0)
	at := headerSize + 1 + version + 1 + 4 + 8 + 1 // the session's id, half a scramble, a zero
	if version < 0 || len(greeting) < at+18 {
		return errProtocol
	}
	mask := binary.LittleEndian.AppendUint32(nil, understood)
	for i, place := range []int{at, at + 1, at + 5, at + 6} { // the character set and the status are between them
		greeting[place] &= mask[i]
	}
	clear(greeting[at+8 : at+18]) // MariaDB's own capabilities
	return nil
}

// loginDatabase returns the database that a client's login names, or "".
func loginDatabase(login []byte) (string, error) {
	const fixed = headerSize + 32
	if len(login) < fixed {
		return "", errProtocol
	}
	capabilities := binary.LittleEndian.Uint32(login[headerSize:])
	_, rest, named := bytes.Cut(login[fixed:], []byte{0}) // the user's name
	if !named || len(rest) == 0 || capabilities&deprecateEOF == 0 {
		return "", errProtocol
	}
	if capabilities&connectWithDB == 0 {
		return "", nil
	}
	proof := 1 + int(rest[0])
	if len(rest) < proof {
		return "", errProtocol
	}
	database, _, _ := bytes.Cut(rest[proof:], []byte{0})
	return string(database), nil
}
