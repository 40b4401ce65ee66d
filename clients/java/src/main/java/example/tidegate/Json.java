package example.tidegate;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As little JSON as this needs: the JDK has none, and a library would be a dependency. */
final class Json {
    private static final int MAX_DEPTH = 64;
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Maps, lists, strings, numbers, booleans and null. */
    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(separator);
                write(String.valueOf(entry.getKey()), out);
                out.append(':');
                write(entry.getValue(), out);
                separator = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String separator = "[";
            for (Object item : list) {
                out.append(separator);
                write(item, out);
                separator = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String string) {
            out.append('"');
            for (char c : string.toCharArray()) {
                if (c == '"' || c == '\\') {
                    out.append('\\').append(c);
                } else if (c < ' ' || Character.isSurrogate(c)) {
                    out.append(String.format("\\u%04x", (int) c));
                } else {
                    out.append(c);
                }
            }
            out.append('"');
        } else {
            out.append(value);
        }
    }

    /** The value that a text holds. Throws IllegalArgumentException where it is none. */
    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.skip();
        if (json.at != text.length()) {
            throw json.wrong();
        }
        return value;
    }

    private Object value(int depth) {
        skip();
        if (depth > MAX_DEPTH || at >= text.length()) {
            throw wrong();
        }
        switch (text.charAt(at)) {
            case '{' -> {
                return map(depth);
            }
            case '[' -> {
                return list(depth);
            }
            case '"' -> {
                return string();
            }
            case 't' -> {
                return word("true", true);
            }
            case 'f' -> {
                return word("false", false);
            }
            case 'n' -> {
                return word("null", null);
            }
            default -> {
                return number();
            }
        }
    }

    private Map<String, Object> map(int depth) {
        Map<String, Object> map = new LinkedHashMap<>();
        at++;
        if (next('}')) {
            return map;
        }
        do {
            skip();
            String name = string();
            if (!next(':')) {
                throw wrong();
            }
            map.put(name, value(depth + 1));
        } while (next(','));
        if (!next('}')) {
            throw wrong();
        }
        return map;
    }

    private List<Object> list(int depth) {
        List<Object> list = new ArrayList<>();
        at++;
        if (next(']')) {
            return list;
        }
        do {
            list.add(value(depth + 1));
        } while (next(','));
        if (!next(']')) {
            throw wrong();
        }
        return list;
    }

    private String string() {
        if (at >= text.length() || text.charAt(at) != '"') {
            throw wrong();
        }
        StringBuilder out = new StringBuilder();
        for (at++; at < text.length(); at++) {
            char c = text.charAt(at);
            if (c == '"') {
                at++;
                return out.toString();
            }
            out.append(c == '\\' ? escaped() : c);
        }
        throw wrong();
    }

    private char escaped() {
        at++;
        if (at >= text.length()) {
            throw wrong();
        }
        char c = text.charAt(at);
        int plain = "\"\\/bfnrt".indexOf(c);
        if (plain >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(plain);
        }
        if (c != 'u' || at + 4 >= text.length()) {
            throw wrong();
        }
        at += 4;
        return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
    }

    private Object number() {
        int start = at;
        while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return Double.valueOf(text.substring(start, at));
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw wrong();
        }
        at += word.length();
        return value;
    }

    private boolean next(char wanted) {
        skip();
        boolean found = at < text.length() && text.charAt(at) == wanted;
        at += found ? 1 : 0;
        return found;
    }

    private void skip() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("not JSON at character " + at);
    }
}
