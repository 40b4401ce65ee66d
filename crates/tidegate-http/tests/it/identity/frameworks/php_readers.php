<?php
// Prints what PHP reads in each line of stdin: {"query": ...}; other cases are not its own.
while (($line = fgets(STDIN)) !== false) {
    $case = json_decode($line, true);
    $read = [];
    if (isset($case['query'])) {
        parse_str($case['query'], $read);
    }
    $value = $read['token'] ?? null;
    while (is_array($value)) {
        $value = reset($value);
    }
    echo json_encode(['php' => $value === false ? null : $value], JSON_INVALID_UTF8_SUBSTITUTE), "\n";
}
